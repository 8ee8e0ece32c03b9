"""Drop-in wheels: a pinned upstream wheel, woven, repacked, and told where it comes from."""
