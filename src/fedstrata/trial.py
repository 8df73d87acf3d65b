"""What is tried before anything is trained: whether a model, its loss and metrics, and the data go together."""

from contextlib import ExitStack
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from fedstrata.errors import DataError, FedstrataError, ModelError, SettingError, in_short
from fedstrata.layout import Arrays
from fedstrata.rng import seeded
from fedstrata.task import Head, Loss, Task, are_labels, cross_entropy

OF_CLASSIFIER = {"features", "last_layer_gradient_variance"}
"""Needs that are about the model's classifier."""

SOME, FEW = 64, 8
"""Examples that a model is tried out on, and those whose targets are exchanged."""


def check_model(model: object) -> None:
    """Raise about a model that cannot be worked with, whatever the data."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"the model must be a torch.nn.Module; got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("the model is a compiled script, whose parameters cannot be exchanged; give the module itself")
    if lazy := next((n for n, p in model.named_parameters() if isinstance(p, UninitializedParameter)), None):
        raise ModelError(f"{lazy!r} has no shape yet; call the model once, on an example, before it is given")
    try:
        deepcopy(model)
    except Exception as e:
        old = "torch.nn.utils.weight_norm, for one, has a successor in torch.nn.utils.parametrizations that can be"
        raise ModelError(f"the model cannot be copied ({in_short(e)}); {old}") from e


def try_out(task: Task, w: Tensor, buffers: Arrays, x: Tensor, y: Tensor, who: str = "") -> Tensor:
    """Raise about a model, loss or metric that does not fit the data; what the model makes of some examples."""
    who = f"{who}: " if who else ""
    rows = various(y)
    if not x.is_floating_point() and x.numel():  # word numbers, which a table may be too short for
        ends = x.flatten(1).amax(1).argmax(), x.flatten(1).amin(1).argmin()
        rows = torch.cat([torch.stack(ends).to(rows), rows])[:SOME]
    outputs = _outputs_or_why(task, w, buffers, x[rows], who)
    if outputs.dim() == 0 or len(outputs) != len(rows):
        shape = f"outputs of shape {tuple(outputs.shape)} for {len(rows)} examples"
        raise ModelError(f"{who}the model must put out something for each example, [examples, ...]; it gives {shape}")
    if task.loss is cross_entropy and outputs.dim() < 2:
        shape = f"{tuple(outputs.shape)} for {len(rows)} examples"
        raise DataError(
            f"{who}cross_entropy needs an output for each class, [examples, classes]; the model gives {shape}"
        )
    if task.loss is cross_entropy and (y.is_floating_point() or y.dim() > 1 or int(y.max()) >= outputs.shape[1]):
        given = f"{y.dtype} targets of shape {tuple(y.shape)} up to {float(y.max()):g}"
        need = f"whole-number labels below {outputs.shape[1]}, one an example"
        raise DataError(f"{who}cross_entropy with this model needs {need}; got {given}")
    _try_scores(task, outputs, y[rows], who)
    return outputs


def various(y: Tensor) -> Tensor:
    """Rows of some examples: one of each label where there are labels, and others from all over the data."""
    rows = np.arange(len(y))
    of_label = rows[:0]
    if are_labels(y, len(y)):
        last = np.full(len(y), -1)
        last[y.cpu().numpy()] = rows
        of_label = _spread(last[last >= 0], SOME)
    return torch.from_numpy(np.concatenate([of_label, _spread(rows, SOME - len(of_label))])).to(y.device)


def _spread(rows: np.ndarray, count: int) -> np.ndarray:
    """So many of them at even distances, or all."""
    return rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int)]


def check_classifier(task: Task, w: Tensor, buffers: Arrays, x: Tensor, needs: frozenset[str]) -> None:
    """Raise where the layer that a part looks at, or replaced, is not what classifies: it was only made last."""
    model, name = task.eval_mode, task.classifier
    headed = any(isinstance(m, Head) for m in model.modules())
    if name is None or not (headed or needs & OF_CLASSIFIER):
        return
    head, called = model.get_submodule(name), list[nn.Module]()
    with ExitStack() as stack, task.scoring(w, buffers) as outputs:
        for module in {head, *(m for m in model.modules() if isinstance(m, nn.Linear))}:
            stack.callback(module.register_forward_pre_hook(lambda m, _: called.append(m)).remove)
        outputs(x[:1].clone())
    if head not in called:
        wrong = "never calls it"
    elif f"{name}.".startswith("classifier.") or called[-1] in [*head.modules()]:
        return
    else:
        wrong = f"calls {next(n for n, m in model.named_modules() if m is called[-1])!r} after it"
    cure = "name the layer that classifies `classifier`"
    raise ModelError(f"the layer {name!r} is taken for the model's classifier, but its forward {wrong}; {cure}")


def _outputs_or_why(task: Task, w: Tensor, buffers: Arrays, x: Tensor, who: str) -> Tensor:
    """What the model makes of these examples, or a sentence about why it cannot take them."""
    version = x._version
    try:
        outputs = task.forward(w, buffers, x).outputs
    except ModelError:
        raise
    except Exception as e:
        shape = f"of shape {tuple(x.shape[1:])}" + (f" in {x.dtype}" if not x.is_floating_point() else "")
        raise DataError(f"{who}the model does not take examples {shape}: {in_short(e)}") from e
    if x._version != version:
        ways = "as x.sub_(1) does, or a first layer with inplace=True"
        raise ModelError(f"the model's forward changes its examples in place, {ways}; let it make new ones")
    return outputs


def _try_scores(task: Task, outputs: Tensor, y: Tensor, who: str) -> None:
    """Raise about a loss or a metric that does not give what is needed of it."""
    shapes = f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(y.shape)}"
    named = {"the loss": task.losses} | {f"the metric {n!r}": m for n, m in task.metrics.items()}
    for said, f in named.items():
        try:
            given = task.loss(outputs, y) if f == task.losses else f(outputs, y)
            if not isinstance(given, Tensor):
                raise SettingError(f"{said} must give a tensor, one number an example; it gives {given!r}")
            fits = f(outputs, y).numel() == len(y)
            own = fits and _minds_its_own(f, outputs[:FEW], y[:FEW])
        except FedstrataError:
            raise
        except Exception as e:
            raise DataError(f"{who}{said} does not fit {shapes}: {in_short(e)}") from e
        if not fits:
            raise SettingError(f"{said} must give one number an example")
        if not own:
            cure = "compare each output with its own, e.g. of outputs.reshape(targets.shape)"
            raise SettingError(f"{who}{said} of one example changes with other examples' targets, for {shapes}; {cure}")
    whole, each = task.loss(outputs, y), task.losses(outputs, y)
    if whole.dim() == 0 and not torch.allclose(whole, each.mean(), rtol=1e-3, atol=1e-5, equal_nan=True):
        broadcast = outputs.numel() == y.numel() and outputs.shape != y.shape
        cure = "take it of outputs.reshape(targets.shape)" if broadcast else "give one with reduction='none'"
        raise SettingError(f"{who}the loss is not the mean of the examples' losses, for {shapes}; {cure}")


def _minds_its_own(f: Loss, outputs: Tensor, y: Tensor) -> bool:
    """Whether what it gives an example stays the same where all others have that example's target."""

    def asked(targets: Tensor) -> Tensor:
        with seeded(0, y.device):
            return f(outputs, targets).double().reshape(len(y), -1)

    alike = torch.stack([asked(y[i : i + 1].expand(y.shape))[i] for i in range(len(y))])
    return torch.allclose(asked(y), alike, rtol=1e-3, atol=1e-5, equal_nan=True)
