"""torch.distributions without values: their checks of arguments pass, and every draw has a shape."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="runs PyTorch on emulated devices")

from torch import distributions as D  # noqa: E402, N812 -- needs torch; its usual name

from forebay._base.assumption_choices import AssumptionChoices  # noqa: E402 -- as above
from forebay.interop.torch.processes import assumed_values  # noqa: E402 -- as above

pytestmark = pytest.mark.usefixtures("with_assumptions")


@pytest.fixture(autouse=True)
def own_choices():
    yield
    assumed_values.choose(AssumptionChoices())


def number():
    return torch.nn.Linear(4, 3, device="cuda")(torch.randn(2, 4, device="cuda"))


def positive():
    return number().exp()


MADE = {
    "Bernoulli": lambda: D.Bernoulli(logits=number()),
    "Beta": lambda: D.Beta(positive(), positive()),
    "Binomial": lambda: D.Binomial(10, number().sigmoid()),
    "Categorical": lambda: D.Categorical(logits=number()),
    "Categorical of shares": lambda: D.Categorical(number().softmax(-1)),
    "Dirichlet": lambda: D.Dirichlet(positive()),
    "Gamma": lambda: D.Gamma(positive(), positive()),
    "Independent": lambda: D.Independent(D.Normal(number(), positive()), 1),
    "LogNormal": lambda: D.LogNormal(number(), positive()),
    "Multinomial": lambda: D.Multinomial(5, number().softmax(-1)),
    "MultivariateNormal": lambda: D.MultivariateNormal(number(), torch.eye(3, device="cuda")),
    "OneHotCategorical": lambda: D.OneHotCategorical(logits=number()),
    "Poisson": lambda: D.Poisson(positive()),
    "RelaxedOneHotCategorical": lambda: D.RelaxedOneHotCategorical(torch.ones((), device="cuda"), logits=number()),
    "StudentT": lambda: D.StudentT(positive()),
    "TanhNormal": lambda: D.TransformedDistribution(D.Normal(number(), positive()), D.TanhTransform(cache_size=1)),
    "Uniform": lambda: D.Uniform(number(), number() + 10),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("is_opposite", [False, True])
def test_checks_pass_and_shapes_are_right(name, is_opposite):
    if is_opposite:
        assumed_values.choose(AssumptionChoices(opposite=True))
    made = MADE[name]()
    drawn = made.rsample((5,)) if made.has_rsample else made.sample((5,))
    assert drawn.shape == (5, *made.batch_shape, *made.event_shape)
    assert made.log_prob(drawn.detach()).shape == (5, *made.batch_shape)
