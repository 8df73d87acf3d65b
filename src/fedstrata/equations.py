r"""The equations of the parts in LaTeX, for the pages; the docstrings say the same in plain text.

w^t is the global model, w_k that of client k, Delta_k = w_k - w^t its update, p_k = n_k / n; \hat w is what weighing
proposes.
"""

EQUATIONS: dict[str, str] = {
    "BySize": r"w^{t+1} = \sum_k p_k \, w_k, \qquad p_k = \frac{n_k}{\sum_j n_j}",
    "Equal": r"w^{t+1} = \frac{1}{K} \sum_k w_k",
    "Momentum": r"v' = \beta v + (1 - d) (w^t - \hat w), \qquad w^{t+1} = w^t - \eta v'",
    "Adagrad": r"v' = v + \Delta^2, \qquad w^{t+1} = w^t + \eta \frac{m'}{\sqrt{v'} + \tau}",
    "Adam": r"v' = \beta_2 v + (1 - \beta_2) \Delta^2, \qquad w^{t+1} = w^t + \eta \frac{m'}{\sqrt{v'} + \tau}",
    "Yogi": r"v' = v - (1 - \beta_2) \Delta^2 \, \mathrm{sign}(v - \Delta^2), \qquad "
    r"w^{t+1} = w^t + \eta \frac{m'}{\sqrt{v'} + \tau}",
    "Prox": r"F_k(w) + \sum_l \frac{\mu_l}{2} \lVert w_l - w^t_l \rVert^2",
    "AdaptiveProx": r"\mu_l \leftarrow (1 - \alpha) \mu_l + \alpha \mu \frac{d_l}{\max_j d_j}, \qquad "
    r"d_l = \lVert w^{t+1}_l - w^t_l \rVert",
    "Scaffold": r"c_k' = c_k - c + \frac{w^t - w_k}{T_k \, \eta}, \qquad c' = c + \frac{1}{N} \sum_k (c_k' - c_k)",
    "Dyn": r"g_k' = g_k - \alpha \Delta_k, \qquad h' = h - \frac{\alpha}{N} \sum_k \Delta_k, \qquad "
    r"w^{t+1} = \frac{1}{K} \sum_k w_k - \frac{h'}{\alpha}",
    "DC": r"F_k(u) + \frac{\alpha}{2 \omega_k} \lVert u - w^t + h_k \rVert^2 + \langle u, g / \omega_k - g_k \rangle, "
    r"\qquad h_k' = h_k + \Delta_k",
    "Moon": r"\ell_{con} = - \log \frac{e^{s(z, z_{glob}) / \tau}}"
    r"{e^{s(z, z_{glob}) / \tau} + \sum_j e^{s(z, z_{prev, j}) / \tau}}",
    "Nova": r"w^{t+1} = w^t + \tau_{eff} \sum_k p_k \frac{\Delta_k}{a_k}, \qquad \tau_{eff} = \sum_k p_k a_k",
    "Disco": r"\psi_k \propto \max(0, p_k - a \, d_k + b)",
    "Dawa": r"w^{t+1}_l = \frac{1}{K} \sum_k \cos(w_{k,l}, w^t_l) \, w_{k,l}",
    "Angle": r"\psi_{k,l} \propto n_k \, e^{f(\theta_{k,l})}, \qquad "
    r"f(\theta) = \alpha \left( 1 - e^{-e^{-\alpha (\theta - 1)}} \right)",
    "Learned": r"w^{t+1} = \gamma \sum_k \lambda_k w_k, \qquad \gamma > 0, \quad \sum_k \lambda_k = 1",
    "Q": r"w^{t+1} = w^t - \frac{\sum_k F_k^q \, d_k}"
    r"{\sum_k \left( q F_k^{q-1} \lVert d_k \rVert^2 + F_k^q / \eta \right)}, "
    r"\qquad d_k = \frac{w^t - w_k}{\eta}",
    "FOLB": r"w^{t+1} = w^t + \sum_k \frac{I_k}{\sum_j \lvert I_j \rvert} \Delta_k, \qquad "
    r"I_k = \langle \bar g, g_k \rangle",
    "LWS": r"w^{t+1}_l = \gamma_l \hat w_l, \qquad "
    r"\gamma_l = \frac{\lVert w^t_l \rVert}{\lVert w^t_l \rVert + \beta \tau_l \lVert \hat w_l - w^t_l \rVert}, \qquad "
    r"\tau_l = \frac{1}{K} \sum_k \lVert \Delta_{k,l} - \bar \Delta_l \rVert",
    "AWD": r"w^{t+1} = \hat w - r \, w^t, \qquad "
    r"r \leftarrow 0.1 \, r + 0.9 \, s \frac{\lVert \hat w - w^t \rVert}{\lVert w^t \rVert}",
    "AdaDecay": r"w^{t+1} = \hat w - s \, \theta \, w^t, \qquad \theta_j = \frac{2}{1 + e^{-\alpha z_j}}",
    "Calm": r"\psi_k = \frac{e^{-\tau V_k}}{\sum_j e^{-\tau V_j}}",
    "SelectiveProx": r"F_k(w) + \frac{\mu}{2} \lVert w - w^t \rVert^2 \quad "
    r"\text{where } \lvert B_k \rvert < B_{th} \text{ or } V_k > V_{th}",
}
"""By the name of the part."""
