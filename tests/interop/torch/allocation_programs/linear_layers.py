"""Matrix products: which of cuBLAS and cuBLASLt is called, workspaces, and the gradients of linear layers."""


def matrix_product(torch):
    one, other = torch.ones(5, 8, device="cuda"), torch.ones(8, 3, device="cuda")
    return one @ other, other.T @ one.T, torch.mm(one, other)


def matrix_vector(torch):
    matrix, vector = torch.ones(50, 80, device="cuda"), torch.ones(80, device="cuda")
    return matrix @ vector, vector @ vector, torch.addmv(torch.ones(50, device="cuda"), matrix, vector)


def batched_product(torch):
    one, other = torch.ones(4, 5, 8, device="cuda"), torch.ones(4, 8, 3, device="cuda")
    return one @ other, torch.baddbmm(torch.ones(4, 5, 3, device="cuda"), one, other)


def broadcast_product(torch):
    one = torch.ones(4, 6, 5, 8, device="cuda")
    return (
        one @ torch.ones(8, 3, device="cuda"),
        one @ torch.ones(6, 8, 3, device="cuda"),
        one @ torch.ones(8, device="cuda"),
    )


def strided_product(torch):
    one = torch.ones(4, 16, 6, 8, device="cuda").transpose(1, 2)
    other = torch.ones(64, 64, device="cuda")[::2, ::2]
    return (
        one @ one.transpose(-1, -2),
        other @ other,
        torch.ones(4, 3, 16, 8, device="cuda").transpose(1, 2)[..., 0] @ torch.ones(3, 2, device="cuda"),
    )


def product_of_halves(torch):
    one = torch.ones(64, 80, device="cuda", dtype=torch.bfloat16)
    double = torch.ones(6, 8, device="cuda", dtype=torch.float64)
    return one @ one.T, one[None] @ one.T[None], double @ double.T


def einsum(torch):
    one, other = torch.ones(4, 6, 16, device="cuda"), torch.ones(32, 16, device="cuda")
    heads = torch.ones(2, 3, 5, 7, device="cuda")
    return (
        torch.einsum("b s i, o i -> b s o", one, other),
        torch.einsum("bhqd,bhkd->bhqk", heads, heads),
        torch.einsum("oi,bsi->bso", other, one),
    )


def einsum_with_gradients(torch):
    one, other = (
        torch.ones(4, 6, 16, device="cuda", requires_grad=True),
        torch.ones(32, 16, device="cuda", requires_grad=True),
    )
    torch.einsum("b s i, o i -> b s o", one, other).sum().backward()
    return one, other


def linear(torch):
    layer = torch.nn.Linear(16, 32, device="cuda")
    return (
        layer(torch.ones(4, 16, device="cuda")),
        layer(torch.ones(2, 3, 16, device="cuda")),
        layer(torch.ones(16, device="cuda")),
    )


def linear_without_bias(torch):
    layer = torch.nn.Linear(16, 32, bias=False, device="cuda")
    return layer(torch.ones(4, 16, device="cuda")), layer(torch.ones(2, 3, 16, device="cuda"))


def linear_with_gradients(torch):
    layer = torch.nn.Linear(16, 32, device="cuda")
    layer(torch.ones(4, 16, device="cuda", requires_grad=True)).sum().backward()
    layer(torch.ones(2, 4, 16, device="cuda")).sum().backward()
    return layer


def linear_of_halves(torch):
    layers = [
        torch.nn.Linear(16, 32, device="cuda", dtype=dtype) for dtype in (torch.bfloat16, torch.float16, torch.float64)
    ]
    for layer in layers:
        layer(torch.ones(2, 4, 16, device="cuda", dtype=layer.weight.dtype)).sum().backward()
    return layers


def linear_with_autocast(torch):
    layer = torch.nn.Linear(16, 32, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = layer(layer.weight.new_ones(4, 16)).sum()
    loss.backward()
    return layer


def linear_with_activation(torch):
    bias = torch.ones(32, device="cuda")
    one, other = torch.ones(4, 16, device="cuda"), torch.ones(16, 32, device="cuda")
    return torch._addmm_activation(bias, one, other), torch._addmm_activation(bias, one, other, use_gelu=True)


def addmm(torch):
    one, other = torch.ones(64, 16, device="cuda"), torch.ones(16, 32, device="cuda")
    full, row, column = (
        torch.ones(64, 32, device="cuda"),
        torch.ones(32, device="cuda"),
        torch.ones(64, 1, device="cuda"),
    )
    return (
        torch.addmm(full, one, other),
        torch.addmm(row, one, other),
        torch.addmm(column, one, other),
        torch.addmm(row, one, other, beta=0.5),
        torch.addmm(row, one, other, beta=0),
        torch.addmm(row, one, other, alpha=2),
        full.addmm_(one, other),
        torch.addmm(row[::2], one, other[:, ::2]),
        torch.addmm(torch.ones(1, device="cuda"), one, other[:, :1]),
    )


def two_streams(torch):
    one = torch.ones(64, 64, device="cuda")
    stream = torch.cuda.Stream()
    first = one @ one
    with torch.cuda.stream(stream):
        second = one @ one
        third = second @ one
    return first, second, third, torch.nn.functional.linear(one, one, one[0])


def workspaces_cleared(torch):
    one = torch.ones(64, 64, device="cuda")
    first = one @ one
    torch._C._cuda_clearCublasWorkspaces()
    return first, one @ one


def empty_products(torch):
    none = torch.ones(0, 8, device="cuda")
    return (
        none @ none.T,
        none.T @ none,
        torch.addmm(torch.ones(8, device="cuda"), none.T, none),
        none[None] @ none.T[None],
    )


def products_of_another_type(torch):
    wide = torch.float32
    found = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        one, other = torch.ones(64, 80, device="cuda", dtype=dtype), torch.ones(80, 32, device="cuda", dtype=dtype)
        bias = torch.ones(64, 32, device="cuda")
        found += [
            torch.mm(one, other, wide),
            torch.mm(one, other, wide, out=torch.empty(64, 32, device="cuda")),
            torch.mm(one[::2, ::2], other[::2], wide),
            torch.bmm(one[None], other[None], wide),
            torch.addmm(bias, one, other, wide),
            torch.addmm(bias[0], one, other, wide),
            torch.baddbmm(bias[None], one[None], other[None], wide),
        ]
    return found


def products_of_groups(torch):
    found = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for groups in (1, 2, 3, 5, 8):
            ends = torch.arange(4, 4 * groups + 4, 4, dtype=torch.int32).cuda()
            one = torch.ones(4 * groups, 16, device="cuda", dtype=dtype)
            weights = torch.ones(groups, 20, 16, device="cuda", dtype=dtype).transpose(1, 2)
            found += [
                torch._grouped_mm(one, weights, ends),
                torch._grouped_mm(one.view(groups, 4, 16), weights),
                torch._grouped_mm(one.view(groups, 4, 16), torch.ones(16, 4 * groups, device="cuda", dtype=dtype), ends)
                if groups in (2, 8)
                else None,
            ]
    return found


def histograms(torch):
    numbers = torch.ones(1000, device="cuda", dtype=torch.int32)
    return (
        torch.histc(numbers, 8, 0, 7), torch.histc(numbers.float(), 8, 0, 7), torch.histc(numbers.long(), 8, 0, 7),
        torch.histc(numbers.float(), 8), torch.histc(numbers, 8),
    )  # fmt: skip
