"""PyTorch's names, each implemented once; the modules that bear them are lists over these."""
