"""Handwritten digits with nothing but NumPy: a two-layer network trained with Adam and minibatches.

    python train_digits.py
    forebay run train_digits.py                   # the same, and where its memory went
    forebay run --memory 16MiB train_digits.py    # the same on a small device

It learns from scikit-learn's 8x8 digits, each also shifted by one pixel in eight directions, and says how many digits
it reads right among those that it has never seen.
"""

import argparse
import sys
import time

import numpy as np

PIXELS = 8 * 8
DIGITS = 10


def load(test_share=0.25, seed=0):
    """Images as rows from 0 to 1, with their digits: those to learn from, and those to be examined with."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        sys.exit("the digits come with scikit-learn, which is not installed: pip install scikit-learn")
    images, digits = load_digits(return_X_y=True)
    images = images.astype(np.float32) / 16
    order = np.random.default_rng(seed).permutation(len(images))
    held_back = int(len(images) * test_share)
    learn, examine = order[held_back:], order[:held_back]
    return images[learn], digits[learn], images[examine], digits[examine]


def shifted(images, digits):
    """Nine of each image: itself, and moved by one pixel in every direction."""
    padded = np.pad(images.reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
    moves = [padded[:, y : y + 8, x : x + 8].reshape(-1, PIXELS) for y in range(3) for x in range(3)]
    return np.concatenate(moves), np.tile(digits, len(moves))


class Network:
    """64 pixels, a hidden layer of rectified sums, 10 scores. Everything it learns is in `weights`."""

    def __init__(self, hidden, rng):
        def layer(inputs, outputs):
            scale = np.sqrt(2 / inputs)  # keeps the size of what flows through (He and others, 2015)
            return (rng.standard_normal((inputs, outputs)) * scale).astype(np.float32), np.zeros(outputs, np.float32)

        self.weights = [*layer(PIXELS, hidden), *layer(hidden, DIGITS)]

    def scores(self, images):
        w1, b1, w2, b2 = self.weights
        hidden = np.maximum(images @ w1 + b1, 0)
        return hidden @ w2 + b2, hidden

    def loss(self, images, digits):
        """The mean cross entropy, and its gradient for each of the weights."""
        scores, hidden = self.scores(images)
        chances = softmax(scores)
        rows = np.arange(len(digits))
        loss = -np.log(chances[rows, digits] + 1e-9).mean()

        # Backwards: each line is the chain rule for one line of `scores`.
        d_scores = chances
        d_scores[rows, digits] -= 1
        d_scores /= len(digits)
        d_hidden = d_scores @ self.weights[2].T
        d_hidden[hidden == 0] = 0
        gradients = [images.T @ d_hidden, d_hidden.sum(axis=0), hidden.T @ d_scores, d_scores.sum(axis=0)]
        return float(loss), gradients

    def accuracy(self, images, digits, at_once=1024):
        pieces = [slice(first, first + at_once) for first in range(0, len(images), at_once)]
        right = sum((self.scores(images[piece])[0].argmax(axis=1) == digits[piece]).sum() for piece in pieces)
        return float(right / len(images))


def softmax(scores):
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


class Adam:
    """Steps by the mean of past gradients over the root of their mean square (Kingma and Ba, 2015)."""

    def __init__(self, weights, rate, decay=0.9, square_decay=0.999):
        self.weights, self.rate = weights, rate
        self.decay, self.square_decay = decay, square_decay
        self.means = [np.zeros_like(w) for w in weights]
        self.squares = [np.zeros_like(w) for w in weights]
        self.steps = 0

    def step(self, gradients):
        self.steps += 1
        # Both means start at zero, which is too low: this makes up for it.
        rate = self.rate * np.sqrt(1 - self.square_decay**self.steps) / (1 - self.decay**self.steps)
        for i, gradient in enumerate(gradients):
            self.means[i] += (1 - self.decay) * (gradient - self.means[i])
            self.squares[i] += (1 - self.square_decay) * (gradient**2 - self.squares[i])
            self.weights[i] -= rate * self.means[i] / (np.sqrt(self.squares[i]) + 1e-8)


def main():
    parser = argparse.ArgumentParser(description="Learn to read handwritten digits.")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rate", type=float, default=2e-3)
    args = parser.parse_args()

    images, digits, test_images, test_digits = load()
    images, digits = shifted(images, digits)
    print(f"learning from {len(digits):,} images, examined with {len(test_digits):,} others")

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
