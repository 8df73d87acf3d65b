"""Where papers and published code are unclear or disagree, what was chosen, and how to choose otherwise."""

from dataclasses import dataclass, replace

from fedstrata.core import Recipe
from fedstrata.recipes import METHODS


@dataclass(frozen=True)
class Decision:
    """One discrepancy; `parts` names the parts and methods that it concerns, `presets` those on the other side."""

    id: str
    where: str
    conflict: str
    choice: str
    option: str  # how to have it otherwise, if it can be had
    parts: tuple[str, ...]
    presets: tuple[str, ...] = ()

    def for_preset(self, name: str) -> "Decision":
        """The same as a preset has it."""
        return replace(self, choice="the other side, which this preset repeats", option=f"`{name.partition('_')[0]}`")

    def __str__(self) -> str:
        otherwise = f" Otherwise: {self.option}." if self.option else ""
        return f"{self.where}: {self.conflict}. Here: {self.choice}.{otherwise}"


DECISIONS = (
    Decision(
        id="D-01",
        where="FedProx, as adaptive mu cites it",
        conflict="mu or mu/2 before the squared distance",
        choice="mu/2",
        option="twice the `mu`",
        parts=("Prox", "AdaptiveProx"),
    ),
    Decision(
        id="D-02",
        where="adaptive mu",
        conflict="the first mu of a layer is not stated",
        choice="mu",
        option="`AdaptiveProx(mu_init=0.0)`, or any other number",
        parts=("AdaptiveProx",),
    ),
    Decision(
        id="D-03",
        where="adaptive mu",
        conflict="which movement of a layer counts cannot be read from the print",
        choice="new minus previous global model, after aggregation",
        option="",
        parts=("AdaptiveProx",),
    ),
    Decision(
        id="D-04",
        where="adaptive mu",
        conflict="what a layer is, where weight and bias are one layer but two tensors",
        choice="a parameter tensor, as the paper says",
        option='`adaptive_fedprox(grain="layer")`',
        parts=("AdaptiveProx",),
    ),
    Decision(
        id="D-05",
        where="FedLayerWise, Eq. 1",
        conflict="divides by norms of F",
        choice="norms of gradients",
        option="",
        parts=("Angle",),
    ),
    Decision(
        id="D-06",
        where="FedLayerWise, Eq. 5",
        conflict="the sign within the Gompertz function contradicts the text and FedAdp",
        choice="minus, so that small angles count more",
        option="`Angle(sign=1)`",
        parts=("Angle",),
    ),
    Decision(
        id="D-07",
        where="FedLayerWise, Eq. 7 and Alg. 1",
        conflict="client models of the round before, and a loop of T - 1 rounds",
        choice="this round's models, and T rounds",
        option="",
        parts=("fedlayerwise",),
    ),
    Decision(
        id="D-08",
        where="FedAdp and FedLayerWise",
        conflict="what t counts when clients sit rounds out",
        choice="the client's own turns",
        option='`Angle(count="round")`',
        parts=("Angle",),
    ),
    Decision(
        id="D-09",
        where="FedLWS, Eq. 3, Eq. 8 and Alg. 1",
        conflict="an update has one sign here and the other there; the mean update is of a layer or of the model",
        choice="the sign changes no norm; the mean is taken layer by layer",
        option="",
        parts=("LWS",),
    ),
    Decision(
        id="D-10",
        where="FedLWS, paper and published code",
        conflict="beta is 0.1 or 0.01 in the paper, 0.03 in the code, which also keeps beta tau within [0.01, 0.2], "
        "ends a layer after each bias, in transformers after each block (where the embedding belongs is not known: "
        "here to the first), and counts and shrinks buffers too",
        choice="the paper",
        option="`fedlws_official`",
        parts=("LWS", "OfficialLWS"),
        presets=("fedlws_official",),
    ),
    Decision(
        id="D-11",
        where="FedDyn, as FedLAW's code has it",
        conflict="the distance is not squared, and h takes each participant's share instead of 1/N",
        choice="the paper of FedDyn",
        option="`feddyn_fedlaw`",
        parts=("Dyn",),
        presets=("feddyn_fedlaw",),
    ),
    Decision(
        id="D-12",
        where="FedProx, as FedLAW's and FedLWS's code have it",
        conflict="local steps without the momentum and weight decay that their FedAvg has",
        choice="the optimiser of FedAvg, and the term",
        option="`fedprox_fedlaw`, or `fedprox(plain_sgd=True)`",
        parts=("Prox",),
        presets=("fedprox_fedlaw",),
    ),
    Decision(
        id="D-13",
        where="L-DAWA",
        conflict="its code scales buffers, divides by zero at a zero tensor and begins with rounds of FedAvg",
        choice="buffers are averaged; cosine 1; no such rounds",
        option="`ldawa_official`, or `ldawa(warmup_rounds=2)`, `ldawa(include_buffers=True)`",
        parts=("Dawa",),
        presets=("ldawa_official",),
    ),
    Decision(
        id="D-14",
        where="FedLAW",
        conflict="20 epochs on the server's data in its code, 100 reported by FedLWS",
        choice="20",
        option="`fedlaw_fedlws`, or `fedlaw(epochs=100)`",
        parts=("Learned",),
        presets=("fedlaw_fedlws",),
    ),
    Decision(
        id="D-15",
        where="FedPBS",
        conflict="Eq. 12 has mu and Eq. 13 mu/2; Alg. 4 and the text differ in the weights, in who is held back, in "
        "which variance counts and in who is selected",
        choice="mu/2, and Alg. 4: equal weights, small batches or variance above the threshold, variance of losses, "
        "no selection by variance",
        option='`fedpbs(aggregation="sat")`, `fedpbs(batch=1)` for the variance alone, '
        '`fedpbs(variance="gradient")`, `fedpbs(selection="sur", k=10)`',
        parts=("SelectiveProx",),
    ),
    Decision(
        id="D-16",
        where="FedBS",
        conflict="several methods have this name",
        choice="the definition in FedPBS",
        option="",
        parts=("Calm", "Calmest"),
    ),
    Decision(
        id="D-17",
        where="FedAvg and FedProx, as FedPBS has them",
        conflict="equal weights in the algorithms, n_k / n in Eq. 7",
        choice="n_k / n",
        option='`fedavg(weighting="uniform")`, `fedprox(weighting="uniform")`',
        parts=("fedavg", "fedprox"),
    ),
    Decision(
        id="D-18",
        where="FedOpt",
        conflict="the first v is tau^2 in the paper and 0 in Flower's and FedLAW's code; Flower corrects the bias of "
        "FedAdam",
        choice="tau^2, no correction",
        option="`fedadam_flower`, `fedadam_fedlaw`, or `Adam(v_init=0.0)`, `Adam(bias_correction=True)`",
        parts=("Adagrad", "Adam", "Yogi"),
        presets=("fedadam_flower", "fedadam_fedlaw"),
    ),
    Decision(
        id="D-19",
        where="FedNova",
        conflict="its code adds 1 twice with momentum and a proximal term",
        choice="the exact recursion",
        option="",
        parts=("Nova",),
    ),
    Decision(
        id="D-20",
        where="FedDC",
        conflict="paper against its code",
        choice="the code, which made the paper's numbers",
        option="",
        parts=("DC",),
    ),
    Decision(
        id="D-21",
        where="FedLayerWise, experiments",
        conflict="Adam in the setup, SGD in Alg. 2",
        choice="SGD",
        option="`--set training.kind=Adam`",
        parts=("fedlayerwise",),
    ),
    Decision(
        id="D-22",
        where="adaptive mu, experiments",
        conflict="clients are sampled by size; how they are weighed then is not stated",
        choice="to repeat them, equally, as size would count twice: "
        '`adaptive_fedprox(weighting="uniform", select=Sample(k=20, by="size"))`',
        option='`adaptive_fedprox(weighting="samples", select=Sample(k=20, by="size"))`',
        parts=("adaptive_fedprox",),
    ),
    Decision(
        id="D-23",
        where="FedLWS, experiments",
        conflict="rounds, batch size and whether the best, the ten best or the last rounds count are not in the paper",
        choice="to repeat them, `--rounds 200 --set training.batch=128` as in its code; every round's score is kept",
        option="",
        parts=("fedlws", "fedlws_official"),
    ),
    Decision(
        id="D-24",
        where="FedLWS, experiments",
        conflict="its code trains on 70 % of each client's data and keeps 30 % for validation",
        choice="all of it",
        option="`--set train_share=0.7`",
        parts=("fedlws", "fedlws_official"),
    ),
    Decision(
        id="D-25",
        where="FedLWS, experiments",
        conflict="its code tests every method without the 2 % of the test set that FedLAW learns from",
        choice="the whole test set, but for methods that need data on the server",
        option="`--set proxy=200`",
        parts=("fedlws", "fedlws_official"),
    ),
    Decision(
        id="D-26",
        where="FedLWS and FedLAW, experiments",
        conflict="their code keeps the state of a client's optimiser between rounds",
        choice="a fresh one every round",
        option="`--set training.reset_optimizer=false`",
        parts=("fedlws", "fedlws_official", "fedlaw", "fedlaw_fedlws"),
    ),
    Decision(
        id="D-27",
        where="FedLWS, experiments",
        conflict="its code gives FashionMNIST a network of 3 channels and 100 classes, which cannot take it",
        choice="to repeat them, the same network with 1 channel and 10 classes",
        option="",
        parts=("fedlws", "fedlws_official"),
    ),
    Decision(
        id="D-28",
        where="FedLWS, experiments",
        conflict="its code trains everybody and then leaves out who was not selected",
        choice="only the selected train",
        option="",
        parts=("fedlws", "fedlws_official"),
    ),
)
"""The register. Its numbers are those in the comments of the code."""


def decisions_of(*about: Recipe | str) -> list[Decision]:
    """Those that concern any of these recipes, methods or parts."""
    names = {name: None for one in about for name in _names(one)}
    found = [d for d in DECISIONS if not names.keys().isdisjoint(d.parts)]
    return [next((d.for_preset(n) for n in names if n in d.presets), d) for d in found]


def _names(one: Recipe | str) -> list[str]:
    """A method stands for itself and for its parts."""
    if isinstance(one, str):
        return [one, *(_names(METHODS[one]()) if one in METHODS else [])]
    return [type(part).__name__ for part in one.parts().values()]
