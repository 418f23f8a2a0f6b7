"""Losses, activations and softmax."""

_ACTIVATIONS = (
    "gelu",
    "silu",
    "relu",
    "sigmoid",
    "tanh",
    "softplus",
    "leaky_relu",
    "elu",
    "mish",
    "hardswish",
    "logsigmoid",
    "glu",
    "relu6",
    "hardtanh",
    "selu",
)


def _targets(torch, rows=6, classes=10):
    return torch.zeros(rows, dtype=torch.long, device="cuda")


def cross_entropy(torch):
    given = torch.ones(6, 10, device="cuda", requires_grad=True)
    loss = torch.nn.functional.cross_entropy(given, _targets(torch))
    loss.backward()
    return loss, given


def cross_entropy_variants(torch):
    given = torch.ones(6, 10, device="cuda", requires_grad=True)
    losses = [
        torch.nn.functional.cross_entropy(given, _targets(torch), reduction="none"),
        torch.nn.functional.cross_entropy(given, _targets(torch), reduction="sum"),
        torch.nn.functional.cross_entropy(given, _targets(torch), label_smoothing=0.1),
        torch.nn.functional.cross_entropy(given, torch.ones(6, 10, device="cuda")),
        torch.nn.functional.cross_entropy(given, _targets(torch), weight=torch.ones(10, device="cuda")),
        torch.nn.functional.cross_entropy(given, _targets(torch), ignore_index=3),
    ]
    sum(each.sum() for each in losses).backward()
    return losses, given


def cross_entropy_of_halves(torch):
    given = torch.ones(6, 10, device="cuda", requires_grad=True, dtype=torch.bfloat16)
    torch.nn.functional.cross_entropy(given, _targets(torch)).backward()
    torch.nn.functional.cross_entropy(given.float(), _targets(torch)).backward()
    return given


def cross_entropy_with_autocast(torch):
    given = torch.ones(6, 10, device="cuda", requires_grad=True, dtype=torch.bfloat16)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(given, _targets(torch))
    loss.backward()
    return given, loss


def cross_entropy_of_images(torch):
    given = torch.ones(2, 5, 6, 7, device="cuda", requires_grad=True)
    loss = torch.nn.functional.cross_entropy(given, torch.zeros(2, 6, 7, dtype=torch.long, device="cuda"))
    loss.backward()
    return loss, given


def softmax(torch):
    given = torch.ones(6, 10, device="cuda", requires_grad=True)
    half = torch.ones(6, 2000, device="cuda", requires_grad=True, dtype=torch.bfloat16)
    results = [
        torch.softmax(given, -1),
        torch.log_softmax(given, 0),
        torch.softmax(half, -1),
        torch.softmax(half, -1, dtype=torch.float32),
        torch.log_softmax(half, 0, dtype=torch.float32),
        torch.nn.functional.softmin(given, 1),
        torch.nn.functional.gumbel_softmax(given),
    ]
    for each in results:
        each.sum().backward()
    return results, given, half


def other_losses(torch):
    functional = torch.nn.functional
    given = torch.ones(6, 10, device="cuda", requires_grad=True)
    other = torch.ones(6, 10, device="cuda")
    losses = [
        functional.mse_loss(given, other),
        functional.l1_loss(given, other),
        functional.smooth_l1_loss(given, other),
        functional.huber_loss(given, other),
        functional.binary_cross_entropy_with_logits(given, other),
        functional.binary_cross_entropy(given.sigmoid(), other),
        functional.kl_div(given.log_softmax(-1), other, reduction="batchmean"),
        functional.cosine_embedding_loss(given, other, torch.ones(6, device="cuda")),
        functional.poisson_nll_loss(given, other),
        functional.soft_margin_loss(given, other),
        functional.margin_ranking_loss(given, other, torch.ones(6, 10, device="cuda")),
        functional.multi_margin_loss(given, _targets(torch)),
        functional.triplet_margin_loss(given, other, other),
        functional.cosine_similarity(given, other).sum(),
        functional.hinge_embedding_loss(given, other),
        functional.gaussian_nll_loss(given, other, torch.ones(6, 10, device="cuda")),
    ]
    for loss in losses:
        loss.backward()
    return losses, given


def activations(torch):
    given = torch.ones(6, 10, device="cuda", requires_grad=True)
    results = [getattr(torch.nn.functional, name)(given) for name in _ACTIVATIONS]
    for each in results:
        each.sum().backward()
    return results, given


def activations_in_place(torch):
    given = torch.ones(6, 10, device="cuda")
    return (
        torch.relu_(given),
        torch.nn.functional.silu(given, inplace=True),
        torch.nn.functional.gelu(given, approximate="tanh"),
        torch.sigmoid_(given),
    )


def prelu(torch):
    layer = torch.nn.PReLU(10, device="cuda")
    layer(torch.ones(6, 10, device="cuda")).sum().backward()
    return layer


def embedding(torch):
    layer = torch.nn.Embedding(50, 16, device="cuda")
    tokens = torch.zeros(4, 10, dtype=torch.long, device="cuda")
    layer(tokens).sum().backward()
    layer(torch.zeros(30, 100, dtype=torch.long, device="cuda")).sum().backward()
    return layer


def embedding_options(torch):
    tokens = torch.zeros(20, 100, dtype=torch.long, device="cuda")
    layers = [
        torch.nn.Embedding(50, 16, device="cuda", padding_idx=0),
        torch.nn.Embedding(50, 16, device="cuda", dtype=torch.bfloat16),
    ]
    for layer in layers:
        layer(tokens).sum().backward()
    return layers


def nll_loss(torch):
    given = torch.ones(6, 10, device="cuda", requires_grad=True)
    losses = [
        torch.nn.functional.nll_loss(given, _targets(torch)),
        torch.nn.functional.nll_loss(given, _targets(torch), reduction="none"),
    ]
    for loss in losses:
        loss.sum().backward()
    return losses, given
