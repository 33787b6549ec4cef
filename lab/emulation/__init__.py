"""Emulated links and compute: other networks and more ranks than this machine has, and never without saying so."""
