"""The torch backend. Importing this package settles how torch's OpenMP threads wait, before torch is loaded."""

import os

# By default they spin between products. Wherever something else wants a core (the HTTP process, the engine's own
# thread), spinning threads keep it from the one that computes, and a step takes several times as long. A short spin
# bridges the gap from one product of a step to the next (measured: bench/NOTES.md).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
