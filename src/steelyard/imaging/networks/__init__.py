"""Networks, their loss, their weights files, and how they are applied to a scan."""
