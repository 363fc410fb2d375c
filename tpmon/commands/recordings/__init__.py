"""The commands around recordings: make one, look at one."""
