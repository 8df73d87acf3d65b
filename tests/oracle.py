"""The server halves once more, in plain numpy float64 from the papers' equations: nothing of the library is used.

A model is a dict of arrays; a reply is (client id, model, examples, stats). `w` is the model the clients started from.
"""

from typing import Any

import numpy as np

Model = dict[str, np.ndarray]
Replies = list[tuple[int, Model, float, dict[str, Any]]]


def mean(w: Model, replies: Replies, weights: list[float]) -> Model:
    return {n: sum(p * m[n] for p, (_, m, _, _) in zip(weights, replies, strict=True)) for n in w}  # pyright: ignore


def shares(replies: Replies) -> list[float]:
    total = sum(n for _, _, n, _ in replies)
    return [n / total for _, _, n, _ in replies]


def fedavg(w: Model, replies: Replies, state: dict, uniform: bool = False) -> Model:
    return mean(w, replies, [1 / len(replies)] * len(replies) if uniform else shares(replies))


def moved(w: Model, hat: Model, lr: float) -> Model:
    """A server learning rate."""
    return {n: w[n] + lr * (hat[n] - w[n]) for n in w}


def fedavgm(w: Model, replies: Replies, state: dict, beta: float = 0.9, lr: float = 1.0, damp: float = 0.0) -> Model:
    hat = fedavg(w, replies, state)
    v = state.setdefault("v", {n: np.zeros_like(x) for n, x in w.items()})
    for n in w:
        v[n] = beta * v[n] + (1 - damp) * (w[n] - hat[n])
    return {n: w[n] - lr * v[n] for n in w}


def fedopt(
    w: Model, replies: Replies, state: dict, kind: str, lr: float, beta1: float,
    tau: float = 1e-3, beta2: float = 0.99, v_init: float | None = None, corrected: bool = False,
) -> Model:  # fmt: skip
    p, out = shares(replies), {}
    r = state["r"] = state.get("r", 0) + 1
    if corrected:
        lr = lr * np.sqrt(1 - beta2 ** (r + 1)) / (1 - beta1 ** (r + 1))
    for n in w:
        m, v = state.setdefault(n, (np.zeros_like(w[n]), np.full_like(w[n], tau**2 if v_init is None else v_init)))
        d = sum(a * (x[n] - w[n]) for a, (_, x, _, _) in zip(p, replies, strict=True))
        m = beta1 * m + (1 - beta1) * d
        v = {
            "adagrad": v + d**2,
            "adam": beta2 * v + (1 - beta2) * d**2,
            "yogi": v - (1 - beta2) * d**2 * np.sign(v - d**2),
        }[kind]
        state[n] = m, v
        out[n] = w[n] + lr * m / (np.sqrt(v) + tau)
    return out


def feddyn(w: Model, replies: Replies, state: dict, alpha: float, population: int) -> Model:
    out = {}
    for n in w:
        h = state.get(n, np.zeros_like(w[n])) - alpha / population * sum(m[n] - w[n] for _, m, _, _ in replies)
        state[n] = h
        out[n] = sum(m[n] for _, m, _, _ in replies) / len(replies) - h / alpha
    return out


def feddyn_fedlaw(w: Model, replies: Replies, state: dict, alpha: float) -> Model:
    """FedDyn's server as FedLAW's code has it: shares of the cohort instead of 1/N and 1/K."""
    hat, out = fedavg(w, replies, state), {}
    for n in w:
        state[n] = state.get(n, np.zeros_like(w[n])) - alpha * (hat[n] - w[n])
        out[n] = hat[n] - state[n] / alpha
    return out


def scaffold_c(w: Model, replies: Replies, state: dict, population: int, lr: float) -> Model:
    """The server's control variate after a round."""
    for n in w:
        c = state.get(n, np.zeros_like(w[n]))
        state[n] = c + sum(-c + (w[n] - m[n]) / (s["steps"] * lr) for _, m, _, s in replies) / population
    return state


def fednova(w: Model, replies: Replies, state: dict) -> Model:
    p, t = shares(replies), [s["steps"] for _, _, _, s in replies]
    tau = sum(a * b for a, b in zip(p, t, strict=True))
    return {n: w[n] - tau * sum(p[k] * (w[n] - r[1][n]) / t[k] for k, r in enumerate(replies)) for n in w}


def disco_weights(replies: Replies, distance: str = "kl", a: float = 0.5, b: float = 0.1) -> list[float]:
    p, q = np.array(shares(replies)), np.array([s["labels"] / np.sum(s["labels"]) for _, _, _, s in replies])
    target = np.full(q.shape[1], 1 / q.shape[1])
    if distance == "kl":
        d = np.where(q > 0, q * np.log(np.where(q > 0, q, 1) / target), 0).sum(1)
        d = d / d.sum()
    elif distance == "cosine":
        d = 1 - q @ target / np.linalg.norm(q, axis=1) / np.linalg.norm(target)
    else:
        d = np.linalg.norm(q - target, ord=1 if distance == "l1" else 2, axis=1)
    weights = np.maximum(p - a * d + b, 0)
    return list(weights / weights.sum() if weights.sum() > 0 else p)


def feddisco(w: Model, replies: Replies, state: dict, distance: str = "kl", a: float = 0.5, b: float = 0.1) -> Model:
    return mean(w, replies, disco_weights(replies, distance, a, b))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    size = np.linalg.norm(a) * np.linalg.norm(b)
    return float(np.clip((a * b).sum() / size, -1, 1)) if size > 0 else 1.0


def ldawa(
    w: Model, replies: Replies, state: dict, floor: float = -1.0, normalised: bool = False, warmup: int = 0
) -> Model:
    t = state["t"] = state.get("t", 0) + 1
    if t <= warmup:
        return fedavg(w, replies, state)
    out = {}
    for n in w:
        delta = [max(floor, cosine(m[n], w[n])) for _, m, _, _ in replies]
        total = sum(delta) if normalised else len(replies)
        out[n] = sum(d * m[n] for d, (_, m, _, _) in zip(delta, replies, strict=True)) / total
    return out


def groups(w: Model, grain: str) -> list[list[str]]:
    if grain == "model":
        return [list(w)]
    if grain == "tensor":
        return [[n] for n in w]
    prefixes = dict.fromkeys(n.rpartition(".")[0] for n in w)
    return [[n for n in w if n.rpartition(".")[0] == p] for p in prefixes]


def vector(m: Model, names: list[str]) -> np.ndarray:
    return np.concatenate([m[n].reshape(-1) for n in names])


def angle_weighted(w: Model, replies: Replies, state: dict, grain: str, alpha: float = 5.0) -> Model:
    """FedAdp and FedLayerWise."""
    p, out = shares(replies), {}
    for g, names in enumerate(groups(w, grain)):
        deltas = [vector(m, names) - vector(w, names) for _, m, _, _ in replies]
        bar, raw = sum(a * d for a, d in zip(p, deltas, strict=True)), []
        for (client, _, n, _), d in zip(replies, deltas, strict=True):
            size = np.linalg.norm(d) * np.linalg.norm(bar)
            theta = np.arccos(np.clip(d @ bar / size, -1, 1)) if size > 0 else np.pi / 2
            old, t = state.get((client, g), (0.0, 0))
            theta = theta if t == 0 else t / (t + 1) * old + theta / (t + 1)
            state[client, g] = theta, t + 1
            raw.append(n * np.exp(alpha * (1 - np.exp(-np.exp(-alpha * (theta - 1))))))
        for n in names:
            out[n] = sum(r / sum(raw) * m[n] for r, (_, m, _, _) in zip(raw, replies, strict=True))
    return {n: out[n] for n in w}


def lws(
    w: Model, hat: Model, replies: Replies, beta: float, grain: str, variant: str, skip: tuple[str, ...] = ()
) -> Model:
    out = {}
    for names in groups(w, grain):
        old, new = vector(w, names), vector(hat, names)
        g = np.array([vector(m, names) - old for _, m, _, _ in replies])
        tau = np.linalg.norm(g - g.mean(0), axis=1).mean()
        size = np.linalg.norm(old)
        gamma = size / (size + beta * tau * np.linalg.norm(new - old)) if size > 0 else 1.0
        for n in names:
            out[n] = {
                "full": gamma * hat[n],
                "only_opt": w[n] + gamma * (hat[n] - w[n]),
                "only_reg": hat[n] - (1 - gamma) * w[n],
            }[variant]
    return {n: hat[n] if n in skip else out[n] for n in w}


def mixed_buffers(w: Model, replies: Replies, weights: list[float]) -> Model:
    """Means of the clients' buffers, not rounded: floating-point ones by these weights, whole numbers by p_k."""
    by = {n: weights if np.issubdtype(x.dtype, np.floating) else shares(replies) for n, x in w.items()}
    return {n: np.asarray(sum(p * r[1][n] for p, r in zip(by[n], replies, strict=True))) for n in w}


def official_lws(
    w: Model, hat: Model, replies: Replies, beta: float = 0.03, low: float = 0.01, high: float = 0.2
) -> Model:
    """FedLWS's published code on a whole state_dict; `hat` has unrounded means of the buffers."""
    out: Model = {}
    group: list[str] = []
    for name in w:
        group.append(name)
        if "bias" not in name and name != list(w)[-1]:
            continue
        old, new = vector(w, group).astype(float), vector(hat, group)
        g = np.array([vector(m, group) - old for _, m, _, _ in replies])
        tau = np.mean([np.linalg.norm(x - g.mean(0)) for x in g])
        size = np.linalg.norm(old)
        pull = min(max(beta * tau, low), high)
        gamma = size / (size + pull * np.linalg.norm(new - old)) if size > 0 else 1.0
        out |= {n: gamma * hat[n] for n in group}
        group = []
    return {n: x if np.issubdtype(w[n].dtype, np.floating) else np.rint(x).astype(w[n].dtype) for n, x in out.items()}


def awd(w: Model, replies: Replies, state: dict, strength: float) -> Model:
    hat = fedavg(w, replies, state)
    size = np.linalg.norm(vector(w, list(w)))
    now = strength * np.linalg.norm(vector(hat, list(w)) - vector(w, list(w))) / size if size > 0 else 0.0
    state["r"] = 0.1 * state.get("r", 0.0) + 0.9 * now
    return {n: hat[n] - state["r"] * w[n] for n in w}


def adadecay(w: Model, replies: Replies, state: dict, alpha: float, strength: float) -> Model:
    hat, out = fedavg(w, replies, state), {}
    for n in w:
        a = np.abs(hat[n] - w[n])
        a = np.where(a < 1e-14, 0.0, a)  # a tensor that did not move: the mean of equal numbers is off by a rounding
        z = (a - a.mean()) / a.std() if a.std() > 0 else np.zeros_like(a)
        out[n] = hat[n] - strength * 2 / (1 + np.exp(-alpha * z)) * w[n]
    return out


def softmax_weighted(w: Model, replies: Replies, state: dict, tau: float, normalise: bool = False) -> Model:
    v = np.array([s["variance"] for _, _, _, s in replies])
    e = np.exp(-tau * (v / v.mean() if normalise else v))
    return mean(w, replies, list(e / e.sum()))


def adaptive_mu(w: Model, new: Model, state: dict, mu: float, alpha: float) -> np.ndarray:
    d = np.array([np.linalg.norm(new[n] - w[n]) for n in w])
    old = state.get("mu", np.full(len(d), mu))
    state["mu"] = old if d.max() == 0 else (1 - alpha) * old + alpha * d / d.max() * mu
    return state["mu"]


def qfedavg(w: Model, replies: Replies, state: dict, q: float, lr: float) -> Model:
    top, bottom = {n: np.zeros_like(v) for n, v in w.items()}, 0.0
    for _, m, _, s in replies:
        f = s["loss"] + 1e-10
        d = {n: (w[n] - m[n]) / lr for n in w}
        top = {n: top[n] + f**q * d[n] for n in w}
        bottom += q * f ** (q - 1) * sum((v**2).sum() for v in d.values()) + f**q / lr
    return {n: w[n] - top[n] / bottom for n in w}


def simplex(v: np.ndarray) -> np.ndarray:
    """By bisection on the shift, unlike the library."""
    low, high = v.min() - 2.0, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - high, 0)


def afl(w: Model, replies: Replies, state: dict, lr: float, population: int) -> Model:
    lam = state.setdefault("lam", np.full(population, 1 / population))
    ids = [c for c, _, _, _ in replies]
    now = lam[ids]
    new = lam.copy()
    new[ids] += lr * np.array([s["loss"] for _, _, _, s in replies])
    state["lam"] = simplex(new)
    return mean(w, replies, list(now / now.sum()) if now.sum() > 0 else shares(replies))


def fairfed(w: Model, replies: Replies, state: dict, beta: float) -> Model:
    p, acc = np.array(shares(replies)), np.array([s["accuracy"] for _, _, _, s in replies])
    gap = np.abs(acc - (p * acc).sum())
    raw = np.array([state.get(c, p[k]) for k, (c, _, _, _) in enumerate(replies)]) - beta * (gap - gap.mean())
    state.update({c: raw[k] for k, (c, _, _, _) in enumerate(replies)})
    cut = np.maximum(raw, 0)
    return mean(w, replies, list(cut / cut.sum() if cut.sum() > 0 else p))


def folb(w: Model, replies: Replies, state: dict, psi: float = 0.0) -> Model:
    g = np.array([s["gradient"] for _, _, _, s in replies])
    after = np.array([s["trained_gradient"] for _, _, _, s in replies])
    gamma = np.linalg.norm(after, axis=1) / np.linalg.norm(g, axis=1)
    i = g @ g.mean(0) - psi * gamma * (g.mean(0) ** 2).sum()
    weights = i / np.abs(i).sum()
    return {n: w[n] + sum(weights[k] * (r[1][n] - w[n]) for k, r in enumerate(replies)) for n in w}
