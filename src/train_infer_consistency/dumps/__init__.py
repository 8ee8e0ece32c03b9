"""Reads what a run left: msprobe's dump trees, its ``.pt`` files, and the two request logs; compares nothing."""
