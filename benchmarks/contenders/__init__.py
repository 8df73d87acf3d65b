"""One file a contender: each runs a workload and prints one line of JSON."""
