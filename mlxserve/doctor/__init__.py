"""Whether this machine and this install can serve: ``facts`` looks, ``findings`` judges."""
