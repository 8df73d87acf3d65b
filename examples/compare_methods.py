"""Three methods over three seeds each: the same split, first model and batches for all, and what is real of it."""

import fedstrata as fs

experiment = {"data": "digits", "rounds": 15, "partition": {"clients": 10, "alpha": 0.1}, "training": {"epochs": 2}}
found = fs.compare(["fedavg", "fedavg + lws(beta=0.1)", "fedprox(mu=5)"], experiment, seeds=3)

for row in found.rows:
    tail = row["tail"]
    print(f"{row['method']}: accuracy {tail['mean']:.3f}, between {tail['low']:.3f} and {tail['high']:.3f}")
print(found)
