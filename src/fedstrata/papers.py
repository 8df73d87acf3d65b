"""Where the parts come from: BibTeX by key, the keys of each part, and all of a recipe's at once."""

from inspect import cleandoc

from fedstrata.core import Part, Recipe
from fedstrata.parts import Angle, Distill
from fedstrata.version import __version__

_BIBLIOGRAPHY = r"""
@inproceedings{mcmahan2017fedavg,
  author = {McMahan, Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and {Ag{\"u}era y Arcas}, Blaise},
  title = {Communication-Efficient Learning of Deep Networks from Decentralized Data},
  booktitle = {International Conference on Artificial Intelligence and Statistics (AISTATS)},
  year = {2017}
}

@misc{hsu2019fedavgm,
  author = {Hsu, Tzu-Ming Harry and Qi, Hang and Brown, Matthew},
  title = {Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification},
  year = {2019},
  eprint = {1909.06335},
  archivePrefix = {arXiv}
}

@inproceedings{reddi2021fedopt,
  author = {Reddi, Sashank J. and Charles, Zachary and Zaheer, Manzil and Garrett, Zachary and Rush, Keith and
    Kone{\v{c}}n{\'y}, Jakub and Kumar, Sanjiv and McMahan, H. Brendan},
  title = {Adaptive Federated Optimization},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year = {2021}
}

@inproceedings{li2020fedprox,
  author = {Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and Sanjabi, Maziar and Talwalkar, Ameet and
    Smith, Virginia},
  title = {Federated Optimization in Heterogeneous Networks},
  booktitle = {Proceedings of Machine Learning and Systems (MLSys)},
  year = {2020}
}

@misc{adaptivemu,
  key = {Per-Layer Adaptive mu FedProx},
  title = {Per-Layer Adaptive $\mu$ {FedProx}},
  note = {Manuscript; its authors and year are not known to us}
}

@inproceedings{karimireddy2020scaffold,
  author = {Karimireddy, Sai Praneeth and Kale, Satyen and Mohri, Mehryar and Reddi, Sashank and Stich, Sebastian and
    Suresh, Ananda Theertha},
  title = {{SCAFFOLD}: Stochastic Controlled Averaging for Federated Learning},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2020}
}

@inproceedings{acar2021feddyn,
  author = {Acar, Durmus Alp Emre and Zhao, Yue and Matas, Ramon and Mattina, Matthew and Whatmough, Paul and
    Saligrama, Venkatesh},
  title = {Federated Learning Based on Dynamic Regularization},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year = {2021}
}

@inproceedings{gao2022feddc,
  author = {Gao, Liang and Fu, Huazhu and Li, Li and Chen, Yingwen and Xu, Ming and Xu, Cheng-Zhong},
  title = {{FedDC}: Federated Learning with Non-{IID} Data via Local Drift Decoupling and Correction},
  booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)},
  year = {2022}
}

@inproceedings{li2021moon,
  author = {Li, Qinbin and He, Bingsheng and Song, Dawn},
  title = {Model-Contrastive Federated Learning},
  booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)},
  year = {2021}
}

@article{mu2023fedproc,
  author = {Mu, Xutong and Shen, Yulong and Cheng, Ke and Geng, Xueli and Fu, Jiaxuan and Zhang, Tao and
    Zhang, Zhiwei},
  title = {{FedProc}: Prototypical Contrastive Federated Learning on Non-{IID} Data},
  journal = {Future Generation Computer Systems},
  year = {2023}
}

@inproceedings{li2023fedetf,
  author = {Li, Zexi and Shang, Xinyi and He, Rui and Lin, Tao and Wu, Chao},
  title = {No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with Synthetic and Fixed
    Classifier},
  booktitle = {IEEE/CVF International Conference on Computer Vision (ICCV)},
  year = {2023}
}

@inproceedings{lee2023fedlama,
  author = {Lee, Sunwoo and Zhang, Tuo and Avestimehr, A. Salman},
  title = {Layer-Wise Adaptive Model Aggregation for Scalable Federated Learning},
  booktitle = {AAAI Conference on Artificial Intelligence},
  year = {2023}
}

@inproceedings{wang2020fednova,
  author = {Wang, Jianyu and Liu, Qinghua and Liang, Hao and Joshi, Gauri and Poor, H. Vincent},
  title = {Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2020}
}

@inproceedings{ye2023feddisco,
  author = {Ye, Rui and Xu, Mingkai and Wang, Jianyu and Xu, Chenxin and Chen, Siheng and Wang, Yanfeng},
  title = {{FedDisco}: Federated Learning with Discrepancy-Aware Collaboration},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2023}
}

@inproceedings{rehman2023ldawa,
  author = {Rehman, Yasar Abbas Ur and Gao, Yan and de Gusm{\~a}o, Pedro Porto Buarque and Alibeigi, Mina and
    Shen, Jiajun and Lane, Nicholas D.},
  title = {{L-DAWA}: Layer-wise Divergence Aware Weight Aggregation in Federated Self-Supervised Visual
    Representation Learning},
  booktitle = {IEEE/CVF International Conference on Computer Vision (ICCV)},
  year = {2023}
}

@article{wu2021fedadp,
  author = {Wu, Hongda and Wang, Ping},
  title = {Fast-Convergent Federated Learning with Adaptive Weighting},
  journal = {IEEE Transactions on Cognitive Communications and Networking},
  year = {2021}
}

@inproceedings{lanjewar2024fedlayerwise,
  author = {Lanjewar, Vedant S. and Tran, Hai-Anh and Tran, Truong X.},
  title = {Layer-Wise Adaptive Weighting for Faster Convergence in Federated Learning},
  booktitle = {IEEE International Conference on Information Reuse and Integration for Data Science (IRI)},
  year = {2024}
}

@inproceedings{li2023fedlaw,
  author = {Li, Zexi and Lin, Tao and Shang, Xinyi and Wu, Chao},
  title = {Revisiting Weighted Aggregation in Federated Learning with Neural Networks},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2023}
}

@misc{fedga2024,
  key = {FedGA},
  title = {{FedGA}: A Greedy Approach to Enhance Federated Learning with Non-{IID} Data},
  year = {2024},
  note = {Known to us by name only; what fedstrata has is a reconstruction}
}

@inproceedings{li2020qffl,
  author = {Li, Tian and Sanjabi, Maziar and Beirami, Ahmad and Smith, Virginia},
  title = {Fair Resource Allocation in Federated Learning},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year = {2020}
}

@inproceedings{mohri2019afl,
  author = {Mohri, Mehryar and Sivek, Gary and Suresh, Ananda Theertha},
  title = {Agnostic Federated Learning},
  booktitle = {International Conference on Machine Learning (ICML)},
  year = {2019}
}

@inproceedings{ezzeldin2023fairfed,
  author = {Ezzeldin, Yahya H. and Yan, Shen and He, Chaoyang and Ferrara, Emilio and Avestimehr, A. Salman},
  title = {{FairFed}: Enabling Group Fairness in Federated Learning},
  booktitle = {AAAI Conference on Artificial Intelligence},
  year = {2023}
}

@article{nguyen2021folb,
  author = {Nguyen, Hung T. and Sehwag, Vikash and Hosseinalipour, Seyyedali and Brinton, Christopher G. and
    Chiang, Mung and Poor, H. Vincent},
  title = {Fast-Convergent Federated Learning},
  journal = {IEEE Journal on Selected Areas in Communications},
  year = {2021}
}

@inproceedings{lin2020feddf,
  author = {Lin, Tao and Kong, Lingjing and Stich, Sebastian U. and Jaggi, Martin},
  title = {Ensemble Distillation for Robust Model Fusion in Federated Learning},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2020}
}

@inproceedings{chen2021fedbe,
  author = {Chen, Hong-You and Chao, Wei-Lun},
  title = {{FedBE}: Making Bayesian Model Ensemble Applicable to Federated Learning},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year = {2021}
}

@inproceedings{shi2025fedlws,
  author = {Shi, Changlong and Li, Jinmeng and Zhao, He and Guo, Dandan and Chang, Yi},
  title = {{FedLWS}: Federated Learning with Adaptive Layer-wise Weight Shrinking},
  booktitle = {International Conference on Learning Representations (ICLR)},
  year = {2025}
}

@inproceedings{ghiasi2023awd,
  author = {Ghiasi, Amin and Shafahi, Ali and Ardekani, Reza},
  title = {Improving Robustness with Adaptive Weight Decay},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2023}
}

@article{nakamura2019adadecay,
  author = {Nakamura, Kensuke and Hong, Byung-Woo},
  title = {Adaptive Weight Decay for Deep Neural Networks},
  journal = {IEEE Access},
  year = {2019}
}

@misc{abounassar2026fedpbs,
  author = {AbouNassar, Eman M. and Elshall, Amr and Abdulah, Sameh},
  title = {{FedPBS}: Proximal-Balanced Scaling Federated Learning Model for Robust Personalized Training for
    Non-{IID} Data},
  year = {2026},
  eprint = {2603.13909},
  archivePrefix = {arXiv}
}

@inproceedings{luo2021ccvr,
  author = {Luo, Mi and Chen, Fei and Hu, Dapeng and Zhang, Yifan and Liang, Jian and Feng, Jiashi},
  title = {No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-{IID} Data},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2021}
}
"""

PAPERS: dict[str, str] = {
    entry.partition("{")[2].partition(",")[0]: entry for entry in _BIBLIOGRAPHY.strip().split("\n\n")
}
"""BibTeX entries by key."""

OWN = f"""\
@misc{{fedstrata,
  author = {{{{The fedstrata developers}}}},
  title = {{fedstrata: federated learning on data that differs from client to client, layer by layer}},
  note = {{Version {__version__}}}
}}"""
"""This library's."""

BASE = "mcmahan2017fedavg"

PART_PAPERS: dict[str, tuple[str, ...]] = {
    "Everyone": (BASE,),
    "Sample": (BASE,),
    "Calmest": ("abounassar2026fedpbs",),
    "BySize": (BASE,),
    "Equal": (BASE,),
    "Angle": ("wu2021fedadp", "lanjewar2024fedlayerwise"),
    "Calm": ("abounassar2026fedpbs",),
    "Dawa": ("rehman2023ldawa",),
    "Disco": ("ye2023feddisco",),
    "Q": ("li2020qffl",),
    "AFL": ("mohri2019afl",),
    "FairFed": ("ezzeldin2023fairfed",),
    "FOLB": ("nguyen2021folb",),
    "FedGAReconstruction": ("fedga2024",),
    "Learned": ("li2023fedlaw",),
    "Nova": ("wang2020fednova",),
    "Prox": ("li2020fedprox",),
    "AdaptiveProx": ("adaptivemu", "li2020fedprox"),
    "SelectiveProx": ("abounassar2026fedpbs", "li2020fedprox"),
    "Scaffold": ("karimireddy2020scaffold",),
    "Dyn": ("acar2021feddyn",),
    "DC": ("gao2022feddc",),
    "Moon": ("li2021moon",),
    "Prototypes": ("mu2023fedproc",),
    "ETF": ("li2023fedetf",),
    "Intervals": ("lee2023fedlama",),
    "Rate": (BASE,),
    "Momentum": ("hsu2019fedavgm",),
    "Adagrad": ("reddi2021fedopt",),
    "Adam": ("reddi2021fedopt",),
    "Yogi": ("reddi2021fedopt",),
    "Distill": ("lin2020feddf", "chen2021fedbe"),
    "LWS": ("shi2025fedlws",),
    "OfficialLWS": ("shi2025fedlws",),
    "FixedShrink": ("shi2025fedlws",),
    "AWD": ("ghiasi2023awd", "shi2025fedlws"),
    "AdaDecay": ("nakamura2019adadecay", "shi2025fedlws"),
    "Calibrate": ("luo2021ccvr",),
}
"""The keys of every part; both decays came to the server in FedLWS."""


def cite(recipe: Recipe) -> str:
    """The BibTeX of all methods that a recipe's parts come from."""
    return "\n\n".join(references(recipe))


def references(recipe: Recipe) -> list[str]:
    """The same entry by entry, each once: FedAvg's, and then in the order of the parts."""
    entries = [PAPERS[BASE], *(e for part in recipe.parts().values() for e in _entries(part))]
    return list(dict.fromkeys(entries))


def _entries(part: Part) -> list[str]:
    """A part of somebody else's has its own in a class attribute `bibtex`."""
    name = type(part).__name__
    if own := getattr(part, "bibtex", None):
        return [cleandoc(own)]
    if name not in PART_PAPERS:
        return [f"% The part {name} has no reference; its class can carry one as a text called bibtex."]
    first = isinstance(part, Angle) and part.grain == "model"  # FedAdp, before FedLayerWise
    first = first or (isinstance(part, Distill) and part.teachers == "clients")  # FedDF, before FedBE
    return [PAPERS[key] for key in (PART_PAPERS[name][:1] if first else PART_PAPERS[name])]
