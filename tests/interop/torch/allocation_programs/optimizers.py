"""Optimizers, gradient scaling and clipping: for-loop, foreach and fused implementations."""


def _steps(torch, make, count=2):
    layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)).to("cuda")
    optimizer = make(list(layers.parameters()))
    for _ in range(count):
        for parameter in layers.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    return layers, optimizer


def adamw(torch):
    return _steps(torch, lambda parameters: torch.optim.AdamW(parameters, lr=0.1))


def adamw_for_loop(torch):
    return _steps(torch, lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=False))


def adamw_fused(torch):
    return _steps(torch, lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True))


def adam_options(torch):
    return [
        _steps(torch, lambda parameters, options=options: torch.optim.Adam(parameters, lr=0.1, **options))
        for options in (
            {"amsgrad": True},
            {"weight_decay": 0.1},
            {"capturable": True},
            {"maximize": True},
            {"foreach": False, "capturable": True},
            {"fused": True, "amsgrad": True},
            {"foreach": False, "amsgrad": True},
        )
    ]


def sgd(torch):
    return [
        _steps(torch, lambda parameters, options=options: torch.optim.SGD(parameters, lr=0.1, **options))
        for options in (
            {},
            {"momentum": 0.9},
            {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
            {"foreach": False, "momentum": 0.9},
            {"fused": True, "momentum": 0.9},
            {"fused": True},
        )
    ]


def other_optimizers(torch):
    makers = (
        torch.optim.RMSprop,
        torch.optim.Adagrad,
        torch.optim.Adadelta,
        torch.optim.Adamax,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.ASGD,
        torch.optim.Rprop,
    )
    return [_steps(torch, lambda parameters, make=make: make(parameters, lr=0.1)) for make in makers]


def other_optimizers_for_loop(torch):
    makers = (
        torch.optim.RMSprop,
        torch.optim.Adagrad,
        torch.optim.Adadelta,
        torch.optim.Adamax,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.ASGD,
        torch.optim.Rprop,
    )
    return [_steps(torch, lambda parameters, make=make: make(parameters, lr=0.1, foreach=False)) for make in makers]


def clipping(torch):
    parameters = [torch.ones(size, device="cuda", requires_grad=True) for size in (5, 1000, 300_000, 7)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    return (
        torch.nn.utils.clip_grad_norm_(parameters, 1.0),
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=False),
        torch.nn.utils.clip_grad_value_(parameters, 0.1),
        parameters,
    )


def gradient_scaler(torch):
    parameters = [torch.ones(size, device="cuda", requires_grad=True) for size in (5, 1000)]
    scaler, optimizer = torch.amp.GradScaler("cuda"), torch.optim.SGD(parameters, lr=0.1)
    loss = scaler.scale(sum((each * 2).sum() for each in parameters))
    loss.backward()
    scaler.unscale_(optimizer)
    return scaler, parameters, loss, optimizer


def foreach_operators(torch):
    given = [torch.ones(size, device="cuda") for size in (5, 1000, 40)]
    names = (
        "add",
        "mul",
        "sub",
        "div",
        "exp",
        "sqrt",
        "neg",
        "abs",
        "norm",
        "maximum",
        "addcmul",
        "addcdiv",
        "lerp",
        "pow",
        "sign",
        "reciprocal",
        "clamp_min",
        "zero_",
        "add_",
        "mul_",
        "sqrt_",
        "addcmul_",
        "addcdiv_",
        "lerp_",
        "copy_",
        "max",
        "rsqrt",
    )
    arguments = {
        "add": (1.0,),
        "mul": (2.0,),
        "sub": (given,),
        "div": (given,),
        "maximum": (given,),
        "addcmul": (given, given),
        "addcdiv": (given, given, 0.5),
        "lerp": (given, 0.5),
        "pow": (2,),
        "clamp_min": (0.0,),
        "add_": (given,),
        "mul_": (given,),
        "addcmul_": (given, given),
        "addcdiv_": (given, given),
        "lerp_": (given, 0.1),
        "copy_": ([each.half() for each in given],),
    }
    return [getattr(torch, f"_foreach_{name}")(given, *arguments.get(name, ())) for name in names]
