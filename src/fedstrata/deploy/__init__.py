"""Deployments: a federation over the network, on this machine or on many."""
