"""Training steps of transformers."""


class _Block:
    """A block of a language model in the manner of GPT-2."""

    def __new__(cls, torch, width, heads, options):
        from torch import nn

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.LayerNorm(width, **options), nn.LayerNorm(width, **options)
                self.joined, self.out = nn.Linear(width, 3 * width, **options), nn.Linear(width, width, **options)
                self.up, self.down = nn.Linear(width, 4 * width, **options), nn.Linear(4 * width, width, **options)

            def forward(self, given):
                batch, time, _ = given.shape
                parts = self.joined(self.first(given)).split(width, dim=2)
                parts = (part.view(batch, time, heads, width // heads).transpose(1, 2) for part in parts)
                mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
                given = given + self.out(mixed.transpose(1, 2).contiguous().view(batch, time, width))
                return given + self.down(nn.functional.gelu(self.up(self.second(given))))

        return Block()


def _language_model(torch, layers=2, width=64, heads=4, vocabulary=100, time=32, **options):
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocabulary, width, **options), nn.Embedding(time, width, **options)
            self.blocks = nn.ModuleList(_Block(torch, width, heads, options) for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(width, **options), nn.Linear(width, vocabulary, bias=False, **options)

        def forward(self, tokens):
            given = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
            for block in self.blocks:
                given = block(given)
            return self.head(self.norm(given))

    return Model().to("cuda")


def _train(torch, model, optimizer, autocast=None, steps=2, vocabulary=100, time=32, clip=True):
    from contextlib import nullcontext

    for _ in range(steps):
        tokens = torch.zeros(3, time, dtype=torch.long, device="cuda")
        with torch.autocast("cuda", dtype=autocast) if autocast else nullcontext():
            loss = torch.nn.functional.cross_entropy(model(tokens).view(-1, vocabulary), tokens.view(-1))
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def single_precision(torch):
    model = _language_model(torch)
    return _train(torch, model, torch.optim.AdamW(model.parameters()))


def autocast(torch):
    import torch.nn.attention as choice

    model = _language_model(torch)
    with choice.sdpa_kernel(
        [choice.SDPBackend.FLASH_ATTENTION, choice.SDPBackend.EFFICIENT_ATTENTION, choice.SDPBackend.MATH]
    ):
        return _train(torch, model, torch.optim.AdamW(model.parameters()), torch.bfloat16)


def halves(torch):
    import torch.nn.attention as choice

    model = _language_model(torch, dtype=torch.bfloat16)
    with choice.sdpa_kernel(
        [choice.SDPBackend.FLASH_ATTENTION, choice.SDPBackend.EFFICIENT_ATTENTION, choice.SDPBackend.MATH]
    ):
        return _train(torch, model, torch.optim.AdamW(model.parameters(), fused=True))


def for_loop_optimizer(torch):
    model = _language_model(torch)
    return _train(torch, model, torch.optim.AdamW(model.parameters(), foreach=False), clip=False)


def inference(torch):
    model = _language_model(torch).eval()
    with torch.inference_mode():
        return model(torch.zeros(3, 32, dtype=torch.long, device="cuda"))
