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
