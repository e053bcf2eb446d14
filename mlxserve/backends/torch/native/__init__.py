"""The C++ operators of ``kernels/cpu`` behind the torch backend: built at first use, called by ctypes."""
