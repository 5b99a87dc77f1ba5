"""A run: its config, its method, its split and its folder."""
