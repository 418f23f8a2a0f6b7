"""Cells of recurrent networks, whose gates have a kernel of their own on CUDA devices."""


def _with_gradients(torch, cell, *states):
    result = cell(torch.ones(3, 8, device="cuda"), *states)
    (result if isinstance(result, torch.Tensor) else result[0]).sum().backward()
    return cell, result


def lstm_cell(torch):
    return _with_gradients(torch, torch.nn.LSTMCell(8, 16, device="cuda"))


def lstm_cell_without_bias(torch):
    return _with_gradients(torch, torch.nn.LSTMCell(8, 16, bias=False, device="cuda"))


def gru_cell(torch):
    return _with_gradients(torch, torch.nn.GRUCell(8, 16, device="cuda"))


def gru_cell_without_bias(torch):
    return _with_gradients(torch, torch.nn.GRUCell(8, 16, bias=False, device="cuda"))


def rnn_cell(torch):
    return _with_gradients(torch, torch.nn.RNNCell(8, 16, device="cuda"))


def states_with_gradients(torch):
    state, memory = (torch.ones(3, 16, device="cuda", requires_grad=True) for _ in range(2))
    return _with_gradients(torch, torch.nn.LSTMCell(8, 16, device="cuda"), (state, memory)), _with_gradients(
        torch, torch.nn.GRUCell(8, 16, device="cuda"), state
    )
