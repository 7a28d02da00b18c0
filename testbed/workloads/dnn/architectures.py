"""The layers of well-known networks: parameters of each tensor, and multiply-adds of each layer.

Pure arithmetic on the architectures as published; no weights. The order is that of
``model.parameters()`` in torchvision and Hugging Face's transformers, which DDP's buckets follow.
Their totals are published, and tested: VGG-16 138,357,544 (Simonyan and Zisserman 2015), ResNet-50
25,557,032 (He et al. 2016, as in torchvision), BERT-base 109,482,240 (Devlin et al. 2019), GPT-2
small 124,439,808 (Radford et al. 2019; its output layer shares the token embedding).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from testbed.core.registry import Registry

__all__ = ["ARCHITECTURES", "Architecture", "Layer"]


@dataclass(frozen=True)
class Layer:
    """A layer: what it learns, and how much it computes.

    :param tensors: Elements of each parameter tensor, in the order of their definition.
    :param macs: Multiply-adds of a forward pass of one sample.
    """

    name: str
    tensors: tuple[int, ...]
    macs: int = 0


@dataclass(frozen=True)
class Architecture:
    """A network.

    :param sample: What one sample is, in words.
    """

    layers: tuple[Layer, ...]
    sample: str

    @property
    def tensors(self) -> list[int]:
        """Elements of all parameter tensors, in the order of their definition."""
        return [size for layer in self.layers for size in layer.tensors]

    @property
    def parameters(self) -> int:
        """Elements of the gradient."""
        return sum(self.tensors)

    @property
    def summary(self) -> str:
        """One line for `testbed list`."""
        return f"{self.parameters:,} parameters; a sample is {self.sample}"

    @property
    def macs(self) -> int:
        """Multiply-adds of a forward pass of one sample."""
        return sum(layer.macs for layer in self.layers)


def convolution(
    name: str, size: int, inputs: int, outputs: int, side: int, bias: bool = False
) -> Layer:
    """Return a convolution of `size` × `size` whose output has `side` × `side` places."""
    weights = size * size * inputs * outputs
    return Layer(name, (weights, outputs) if bias else (weights,), weights * side * side)


def norm(name: str, width: int) -> Layer:
    """Return a normalization's scale and shift."""
    return Layer(name, (width, width))


def linear(name: str, inputs: int, outputs: int, rows: int = 1) -> Layer:
    """Return a fully connected layer with a bias, applied to each of `rows`."""
    return Layer(name, (inputs * outputs, outputs), inputs * outputs * rows)


def embedding(name: str, *shape: int) -> Layer:
    """Return a table that is looked up."""
    return Layer(name, (prod(shape),))


def vgg16() -> Iterator[Layer]:
    """Yield configuration D: 13 convolutions of 3 × 3, and three fully connected layers."""
    inputs, side = 3, 224
    for block, (width, count) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), 1):
        for number in range(1, count + 1):
            yield convolution(f"conv{block}_{number}", 3, inputs, width, side, bias=True)
            inputs = width
        side //= 2
    yield linear("fc6", 512 * 7 * 7, 4096)
    yield linear("fc7", 4096, 4096)
    yield linear("fc8", 4096, 1000)


def resnet50() -> Iterator[Layer]:
    """Yield 16 bottlenecks of three convolutions; as in torchvision, the 3 × 3 one has the
    stride.
    """
    yield convolution("conv1", 7, 3, 64, 112)
    yield norm("bn1", 64)
    inputs, side = 64, 56
    for stage, (width, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for number in range(count):
            name, before = f"layer{stage}.{number}", side
            if number == 0 and stage > 1:
                side //= 2
            yield convolution(f"{name}.conv1", 1, inputs, width, before)
            yield norm(f"{name}.bn1", width)
            yield convolution(f"{name}.conv2", 3, width, width, side)
            yield norm(f"{name}.bn2", width)
            yield convolution(f"{name}.conv3", 1, width, 4 * width, side)
            yield norm(f"{name}.bn3", 4 * width)
            if number == 0:
                yield convolution(f"{name}.downsample.0", 1, inputs, 4 * width, side)
                yield norm(f"{name}.downsample.1", 4 * width)
            inputs = 4 * width
    yield linear("fc", 2048, 1000)


def attention(name: str, width: int, tokens: int) -> Layer:
    """Return scores and weighted sums, which have no parameters."""
    return Layer(name, (), 2 * tokens * tokens * width)


def bert_base(tokens: int = 128) -> Iterator[Layer]:
    """Yield the uncased model with its pooler: 12 layers, 768 wide."""
    width = 768
    yield embedding("embeddings.word", 30_522, width)
    yield embedding("embeddings.position", 512, width)
    yield embedding("embeddings.token_type", 2, width)
    yield norm("embeddings.norm", width)
    for number in range(12):
        for part in ("query", "key", "value"):
            yield linear(f"layer{number}.{part}", width, width, tokens)
        yield attention(f"layer{number}.attention", width, tokens)
        yield linear(f"layer{number}.attention.output", width, width, tokens)
        yield norm(f"layer{number}.attention.norm", width)
        yield linear(f"layer{number}.intermediate", width, 4 * width, tokens)
        yield linear(f"layer{number}.output", 4 * width, width, tokens)
        yield norm(f"layer{number}.norm", width)
    yield linear("pooler", width, width)


def gpt2_small(tokens: int = 1024) -> Iterator[Layer]:
    """Yield 12 layers, 768 wide; the output layer multiplies by the token embedding."""
    width, words = 768, 50_257
    yield embedding("wte", words, width)
    yield embedding("wpe", 1024, width)
    for number in range(12):
        yield norm(f"h{number}.ln_1", width)
        yield linear(f"h{number}.attn.c_attn", width, 3 * width, tokens)
        yield attention(f"h{number}.attn", width, tokens)
        yield linear(f"h{number}.attn.c_proj", width, width, tokens)
        yield norm(f"h{number}.ln_2", width)
        yield linear(f"h{number}.mlp.c_fc", width, 4 * width, tokens)
        yield linear(f"h{number}.mlp.c_proj", 4 * width, width, tokens)
    yield norm("ln_f", width)
    yield Layer("lm_head", (), words * width * tokens)


ARCHITECTURES: Registry[Architecture] = Registry(
    "architecture",
    f"{__name__}:Architecture",
    {
        "vgg16": Architecture(tuple(vgg16()), "an image of 224 × 224"),
        "resnet50": Architecture(tuple(resnet50()), "an image of 224 × 224"),
        "bert-base": Architecture(tuple(bert_base()), "128 tokens"),
        "gpt2-small": Architecture(tuple(gpt2_small()), "1,024 tokens"),
    },
    group="testbed.architectures",
    instances=True,
)
