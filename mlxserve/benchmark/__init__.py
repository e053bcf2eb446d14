"""What ``mlxserve bench`` runs: arms that compare engines on one prompt set, and a load client for any server.

Knows the engine only through the offline API, and servers only through HTTP.
"""
