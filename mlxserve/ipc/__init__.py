"""The engine in a process of its own, behind the same interface as the engine in a thread.

A fault below Python (a Metal abort, the kernel's out-of-memory killer) ends that process and not the server.
"""
