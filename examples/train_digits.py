"""Recognise handwritten digits with NumPy: a two-layer network trained with Adam on minibatches.

    python train_digits.py
    forebay run train_digits.py                   # also report where memory was allocated
    forebay run --memory 16MiB train_digits.py    # on a small device

The data are scikit-learn's 8x8 digits, each also shifted by one pixel in eight directions. The program prints the
accuracy on digits that were not used for training.
"""

import argparse
import sys
import time

import numpy as np

PIXELS = 8 * 8
DIGITS = 10


def load(test_share=0.25, seed=0):
    """Return training images and digits, then test images and digits; an image is a row of values from 0 to 1."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        sys.exit("the data set is part of scikit-learn, which is not installed: pip install scikit-learn")
    images, digits = load_digits(return_X_y=True)
    images = images.astype(np.float32) / 16
    order = np.random.default_rng(seed).permutation(len(images))
    test_count = int(len(images) * test_share)
    train, test = order[test_count:], order[:test_count]
    return images[train], digits[train], images[test], digits[test]


def shifted(images, digits):
    """Return nine copies of each image: unshifted, and shifted by one pixel in eight directions."""
    padded = np.pad(images.reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
    shifts = [padded[:, y : y + 8, x : x + 8].reshape(-1, PIXELS) for y in range(3) for x in range(3)]
    return np.concatenate(shifts), np.tile(digits, len(shifts))


class Network:
    """A network of 64 inputs, one hidden ReLU layer and 10 outputs; `weights` holds all parameters."""

    def __init__(self, hidden, rng):
        def layer(inputs, outputs):
            scale = np.sqrt(2 / inputs)  # preserves the variance of activations (He et al., 2015)
            return (rng.standard_normal((inputs, outputs)) * scale).astype(np.float32), np.zeros(outputs, np.float32)

        self.weights = [*layer(PIXELS, hidden), *layer(hidden, DIGITS)]

    def scores(self, images):
        w1, b1, w2, b2 = self.weights
        hidden = np.maximum(images @ w1 + b1, 0)
        return hidden @ w2 + b2, hidden

    def loss(self, images, digits):
        """Return the mean cross entropy and its gradients with respect to the weights."""
        scores, hidden = self.scores(images)
        probabilities = softmax(scores)
        rows = np.arange(len(digits))
        loss = -np.log(probabilities[rows, digits] + 1e-9).mean()

        # Backward pass: each line is the chain rule for one line of `scores`.
        d_scores = probabilities
        d_scores[rows, digits] -= 1
        d_scores /= len(digits)
        d_hidden = d_scores @ self.weights[2].T
        d_hidden[hidden == 0] = 0
        gradients = [images.T @ d_hidden, d_hidden.sum(axis=0), hidden.T @ d_scores, d_scores.sum(axis=0)]
        return float(loss), gradients

    def accuracy(self, images, digits, chunk_size=1024):
        chunks = [slice(first, first + chunk_size) for first in range(0, len(images), chunk_size)]
        correct = sum((self.scores(images[chunk])[0].argmax(axis=1) == digits[chunk]).sum() for chunk in chunks)
        return float(correct / len(images))


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


class Adam:
    """Adam optimizer (Kingma and Ba, 2015)."""

    def __init__(self, weights, rate, decay=0.9, square_decay=0.999):
        self.weights, self.rate = weights, rate
        self.decay, self.square_decay = decay, square_decay
        self.means = [np.zeros_like(w) for w in weights]
        self.squares = [np.zeros_like(w) for w in weights]
        self.steps = 0

    def step(self, gradients):
        self.steps += 1
        # Correct the bias of the means, which start at zero.
        rate = self.rate * np.sqrt(1 - self.square_decay**self.steps) / (1 - self.decay**self.steps)
        for i, gradient in enumerate(gradients):
            self.means[i] += (1 - self.decay) * (gradient - self.means[i])
            self.squares[i] += (1 - self.square_decay) * (gradient**2 - self.squares[i])
            self.weights[i] -= rate * self.means[i] / (np.sqrt(self.squares[i]) + 1e-8)


def main():
    parser = argparse.ArgumentParser(description="Train a network to recognise handwritten digits.")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rate", type=float, default=2e-3)
    args = parser.parse_args()

    images, digits, test_images, test_digits = load()
    images, digits = shifted(images, digits)
    print(f"training on {len(digits):,} images, testing on {len(test_digits):,} others")

    rng = np.random.default_rng(1)
    network = Network(args.hidden, rng)
    optimizer = Adam(network.weights, args.rate)
    start = time.perf_counter()
    for epoch in range(1, args.epochs + 1):
        losses = []
        order = rng.permutation(len(digits))
        for first in range(0, len(order), args.batch):
            batch = order[first : first + args.batch]
            loss, gradients = network.loss(images[batch], digits[batch])
            optimizer.step(gradients)
            losses.append(loss)
        if epoch % 2 == 0 or epoch == args.epochs:
            known, unknown = network.accuracy(images, digits), network.accuracy(test_images, test_digits)
            print(f"epoch {epoch:2}  loss {np.mean(losses):.4f}  accuracy {known:.2%} known, {unknown:.2%} unknown")

    print(f"{network.accuracy(test_images, test_digits):.2%} of the unknown digits read right", end=", ")
    print(f"after {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
