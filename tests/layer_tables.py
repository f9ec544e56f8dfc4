"""Layer tables of known models, so that tests of the language read no config.json."""

from pathlib import Path

from topoc.dsl.model import Kind, Layer, Layers

CONFIG = Path("config.json")


def _layer(kind, *, window=None, donor=None, heads=8, kv_heads=1, head_dim=256, parameters):
    return Layer(
        kind=kind,
        window=window if kind is Kind.SLIDING else None,
        donor=donor,
        kv_weights=donor is None,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        parameters=parameters,
    )


def gemma3(_config: Path = CONFIG) -> Layers:
    """Gemma 3 270M: 18 layers, each sixth full, the others see 512 positions."""
    layers = tuple(
        _layer(
            Kind.FULL if at % 6 == 5 else Kind.SLIDING,
            window=512,
            heads=4,
            parameters=5_573_000,
        )
        for at in range(18)
    )
    return Layers(
        family="gemma3_text",
        config=CONFIG,
        layers=layers,
        hidden=640,
        vocabulary=262_144,
        positions=32_768,
        head_parameters=640 * 262_144,
        embed_parameters=640 * 262_144,
    )


def gemma4(_config: Path = CONFIG) -> Layers:
    """Gemma 4 E2B: 35 layers, each fifth full; L15 to L34 read the KV of L13 and L14."""
    layers = tuple(_gemma4_layer(at) for at in range(35))
    return Layers(
        family="gemma4_text",
        config=CONFIG,
        layers=layers,
        hidden=1536,
        vocabulary=262_144,
        positions=131_072,
        has_ple=True,
        head_parameters=1536 * 262_144,
        embed_parameters=1536 * 262_144,
    )


def _gemma4_layer(at: int) -> Layer:
    full = at % 5 == 4
    donor = None if at < 15 else 14 if full else 13
    return _layer(
        Kind.FULL if full else Kind.SLIDING,
        window=512,
        donor=donor,
        head_dim=512 if full else 256,
        parameters=36_200_000 if at < 15 else 63_700_000,
    )


def gemma4_e4b(_config: Path = CONFIG) -> Layers:
    """Gemma 4 E4B: 42 layers, each sixth full; L24 to L41 read the KV of L22 and L23."""
    layers = tuple(_gemma4_e4b_layer(at) for at in range(42))
    return Layers(
        family="gemma4_text",
        config=CONFIG,
        layers=layers,
        hidden=2560,
        vocabulary=262_144,
        positions=131_072,
        has_ple=True,
        head_parameters=2560 * 262_144,
        embed_parameters=2560 * 262_144,
    )


def _gemma4_e4b_layer(at: int) -> Layer:
    full = at % 6 == 5
    donor = None if at < 24 else 23 if full else 22
    owned = 13_100_000 if donor is None else 10_500_000
    return _layer(
        Kind.FULL if full else Kind.SLIDING,
        window=512,
        donor=donor,
        kv_heads=2,
        head_dim=512 if full else 256,
        parameters=80_000_000 + owned * (2 if full else 1),
    )


def qwen3(_config: Path = CONFIG) -> Layers:
    """Qwen3 0.6B: 28 full layers that all own their KV."""
    return Layers(
        family="qwen3",
        config=CONFIG,
        layers=(_layer(Kind.FULL, heads=16, kv_heads=8, head_dim=128, parameters=15_730_000),) * 28,
        hidden=1024,
        vocabulary=151_936,
        positions=40_960,
        head_parameters=1024 * 151_936,
        embed_parameters=1024 * 151_936,
    )


def narrow(_config: Path = CONFIG) -> Layers:
    """Two layers of odd sizes: heads 80 wide, 97 classes."""
    return Layers(
        family="llama",
        config=CONFIG,
        layers=(_layer(Kind.FULL, heads=4, kv_heads=2, head_dim=80, parameters=100_000),) * 2,
        hidden=320,
        vocabulary=97,
        positions=4096,
        head_parameters=320 * 97,
        embed_parameters=320 * 97,
    )


# What the checkpoints of Gemma 4 say of each layer, written out: its kind, whose KV it reads, and
# its place in the caches of the four-chunk layout (the chunk, and the slot of its kind there).
E2B = """
0 S own c1.S0 | 1 S own c1.S1 | 2 S own c1.S2 | 3 S own c1.S3 | 4 F own c1.F0
5 S own c1.S4 | 6 S own c1.S5 | 7 S own c1.S6 | 8 S own c2.S0 | 9 F own c2.F0
10 S own c2.S1 | 11 S own c2.S2 | 12 S own c2.S3 | 13 S own c2.S4 | 14 F own c2.F1
15 S L13 - | 16 S L13 - | 17 S L13 - | 18 S L13 - | 19 F L14 -
20 S L13 - | 21 S L13 - | 22 S L13 - | 23 S L13 - | 24 F L14 -
25 S L13 - | 26 S L13 - | 27 S L13 - | 28 S L13 - | 29 F L14 -
30 S L13 - | 31 S L13 - | 32 S L13 - | 33 S L13 - | 34 F L14 -
"""
E4B = """
0 S own c1.S0 | 1 S own c1.S1 | 2 S own c1.S2 | 3 S own c1.S3 | 4 S own c1.S4 | 5 F own c1.F0
6 S own c1.S5 | 7 S own c1.S6 | 8 S own c1.S7 | 9 S own c1.S8 | 10 S own c1.S9 | 11 F own c1.F1
12 S own c2.S0 | 13 S own c2.S1 | 14 S own c2.S2 | 15 S own c2.S3 | 16 S own c2.S4 | 17 F own c2.F0
18 S own c2.S5 | 19 S own c2.S6 | 20 S own c2.S7 | 21 S own c2.S8 | 22 S own c2.S9 | 23 F own c2.F1
24 S L22 - | 25 S L22 - | 26 S L22 - | 27 S L22 - | 28 S L22 - | 29 F L23 -
30 S L22 - | 31 S L22 - | 32 S L22 - | 33 S L22 - | 34 S L22 - | 35 F L23 -
36 S L22 - | 37 S L22 - | 38 S L22 - | 39 S L22 - | 40 S L22 - | 41 F L23 -
"""
# Kind to head width, and the KV heads of every layer.
E2B_HEADS, E4B_HEADS = ({"S": 256, "F": 512}, 1), ({"S": 256, "F": 512}, 2)


def rows(table: str) -> tuple[tuple[int, str, int | None, str | None], ...]:
    """The lines of a written table: layer, kind, donor, place."""
    cells = [one.split() for line in table.strip().splitlines() for one in line.split("|")]
    return tuple(
        (
            int(layer),
            kind,
            None if source == "own" else int(source.removeprefix("L")),
            None if place == "-" else place,
        )
        for layer, kind, source, place in cells
    )
