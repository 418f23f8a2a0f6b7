"""Programs that `torch.compile` compiles with Inductor, in training steps and alone."""


def _compiled(torch, function, **options):
    """Return a compiled function. Over the oracle, Triton and Inductor are prepared first."""
    if not torch.cuda.get_device_name().endswith("(emulated)"):
        from support import triton_on_oracle

        triton_on_oracle.install()
    torch._dynamo.reset()
    return torch.compile(function, **options)


def _train(torch, net, inputs, optimizer=None, steps=2, **options):
    run = _compiled(torch, net, **options)
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        run(*inputs).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return net, optimizer


def _block(torch):
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self, width=128, heads=4):
            super().__init__()
            self.heads = heads
            self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch, tokens, _ = x.shape
            q, k, v = self.qkv(self.norm(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            made = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(made.transpose(1, 2).reshape(x.shape))
            return x + self.down(functional.gelu(self.up(self.norm2(x))))

    return Block()


def layers(torch):
    nn = torch.nn
    net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256)).cuda()
    return _train(torch, net, [torch.empty(64, 256, device="cuda")])


def transformer_block(torch):
    net = _block(torch).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    return _train(torch, net, [torch.empty(2, 32, 128, device="cuda")], optimizer)


def transformer_block_in_half_precision(torch):
    net = _block(torch).cuda().bfloat16()
    return _train(torch, net, [torch.empty(2, 32, 128, device="cuda", dtype=torch.bfloat16)])


def transformer_block_with_autocast(torch):
    net = _block(torch).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return _train(torch, net, [torch.empty(2, 32, 128, device="cuda")], steps=1)


def transformer_block_with_checkpoint(torch):
    from torch.utils.checkpoint import checkpoint

    net = _block(torch).cuda()

    def run(x):
        return checkpoint(net, x, use_reentrant=False)

    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return _train(torch, run, [torch.empty(2, 32, 128, device="cuda")], optimizer), net


def blocks_compiled_alone(torch):
    net = torch.nn.Sequential(_block(torch), _block(torch)).cuda()
    for index, each in enumerate(net):
        net[index] = _compiled(torch, each) if not index else torch.compile(each)
    for _ in range(2):
        net(torch.empty(2, 32, 128, device="cuda")).mean().backward()
    return net


def language_model_loss(torch):
    functional = torch.nn.functional
    words, head = torch.nn.Embedding(1000, 64).cuda(), torch.nn.Linear(64, 1000).cuda()
    tokens = torch.zeros(4, 32, dtype=torch.long, device="cuda")

    def loss(tokens):
        return functional.cross_entropy(head(words(tokens)).flatten(0, 1), tokens.flatten())

    run = _compiled(torch, loss)
    for _ in range(2):
        run(tokens).backward()
    return words, head, tokens


def gated_layers(torch):
    functional = torch.nn.functional

    class Gated(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.RMSNorm(128)
            self.gate, self.up, self.down = (torch.nn.Linear(128, 128, bias=False) for _ in range(3))

        def forward(self, x):
            x = self.norm(x)
            return self.down(functional.silu(self.gate(x)) * self.up(x))

    return _train(torch, Gated().cuda(), [torch.empty(2, 16, 128, device="cuda")])


def rotated_positions(torch):
    angles = torch.empty(32, 16, device="cuda")

    def rotate(x):
        left, right = x.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((left * cos - right * sin, left * sin + right * cos), -1)

    x = torch.empty(4, 32, 32, device="cuda", requires_grad=True)
    _compiled(torch, rotate)(x).sum().backward()
    return angles, x


def dynamic_sizes(torch):
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).cuda()
    run = _compiled(torch, net, dynamic=True)
    for count in (16, 24, 40):
        run(torch.empty(count, 64, device="cuda")).sum().backward()
    return net


def optimizer_step(torch):
    net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    step = _compiled(torch, optimizer.step)
    for _ in range(2):
        net(torch.empty(8, 64, device="cuda")).sum().backward()
        step()
    return net, optimizer


def dropout(torch):
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 64)).cuda()
    return _train(torch, net, [torch.empty(16, 64, device="cuda")])


def batch_norm(torch):
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).cuda()
    return _train(torch, net, [torch.empty(16, 64, device="cuda")])


def mutated_inputs(torch):
    def update(x, mean):
        mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        x.relu_()
        return (x - mean).square().sum(1)

    x, mean = torch.empty(64, 32, device="cuda"), torch.zeros(32, device="cuda")
    return x, mean, _compiled(torch, update)(x, mean)


def views_of_inputs(torch):
    def parts(x):
        return x[2:4], x.t(), x.view(-1)[:16] + 1

    x = torch.empty(8, 8, device="cuda")
    return x, _compiled(torch, parts)(x)


def reductions(torch):
    def stats(x):
        return x.softmax(-1), x.var(0), x.amax(1), x.argmax(1), x.logsumexp(-1), x.cumsum(1), x.norm()

    x = torch.empty(512, 1024, device="cuda")
    return x, _compiled(torch, stats)(x)


def long_reduction(torch):
    x = torch.empty(1 << 22, device="cuda")
    return x, _compiled(torch, lambda each: (each.sum(), each.square().mean()))(x)


def indexing(torch):
    def take(x, index):
        picked = x[index]
        return picked, torch.zeros_like(x).index_add(0, index, picked), x.scatter(0, index[:, None], 0.0)

    x, index = torch.empty(64, 16, device="cuda"), torch.zeros(8, dtype=torch.long, device="cuda")
    return x, index, _compiled(torch, take)(x, index)


def sorting(torch):
    x = torch.empty(16, 256, device="cuda")
    return x, _compiled(torch, lambda each: (each.sort(-1), each.topk(4), (each * 2).mode(-1)))(x)


def breaks(torch):
    def run(x):
        x = x * 2 + 1
        torch._dynamo.graph_break()
        return x.exp().sum(0)

    x = torch.empty(64, 64, device="cuda")
    return x, _compiled(torch, run)(x)


def evaluation(torch):
    net = _block(torch).cuda().eval()
    with torch.no_grad():
        return net, _compiled(torch, net)(torch.empty(2, 32, 128, device="cuda"))


def upsampling(torch):
    functional = torch.nn.functional

    def run(x):
        return functional.interpolate(functional.avg_pool2d(x, 2), scale_factor=2, mode="bilinear").sigmoid()

    x = torch.empty(2, 4, 32, 32, device="cuda", requires_grad=True)
    _compiled(torch, run)(x).sum().backward()
    return x


def own_operator(torch):
    if not hasattr(torch.ops, "allocation_programs") or not hasattr(torch.ops.allocation_programs, "twice"):

        @torch.library.custom_op("allocation_programs::twice", mutates_args=())
        def twice(x: torch.Tensor) -> torch.Tensor:
            return x + x

        twice.register_fake(torch.empty_like)
    x = torch.empty(64, 64, device="cuda")
    return x, _compiled(torch, lambda each: torch.ops.allocation_programs.twice(each.sin()).cos())(x)


def checked_gradients(torch):
    def run(weights, x):
        return torch.func.grad(lambda each: (x @ each).tanh().sum())(weights)

    weights, x = torch.empty(64, 32, device="cuda"), torch.empty(16, 64, device="cuda")
    return weights, x, _compiled(torch, run)(weights, x)
