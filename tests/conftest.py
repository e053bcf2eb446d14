"""Settings that must precede the first import of torch."""

import os

# As the torch backend sets it; here tests may import torch before it does.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
