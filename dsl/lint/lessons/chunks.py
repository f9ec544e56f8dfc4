"""Lessons on chunks, functions, schemes and the records around them."""

from topoc.dsl.lint.lessons.lesson import Lesson

LESSONS: dict[str, Lesson] = {
    "chunk.missing": Lesson(
        "Nothing says how the layers are cut into chunks.",
        'topology uncut {\n  model "gemma3.json"\n  context 2048\n}',
        'topology whole {\n  model "gemma3.json"\n  context 2048\n'
        "  chunk body = L0-17 + norm + head(argmax)\n}",
    ),
    "chunk.argument": Lesson(
        "A chunk takes `unit` and `function`, each with a value that is known.",
        "chunk body(units = gpu) = L0-17 + norm + head(argmax)",
        "chunk body(unit = gpu) = L0-17 + norm + head(argmax)",
    ),
    "chunk.gap": Lesson(
        "Some layers are in no chunk; a derived topology's chunk lines replace all of its base's.",
        "chunk one = L0-7\nchunk two = L9-17 + norm + head(argmax)",
        "chunk one = L0-8\nchunk two = L9-17 + norm + head(argmax)",
    ),
    "chunk.overlap": Lesson(
        "A layer or another part stands in two places of one chunk list.",
        "chunk one = L0-9\nchunk two = L9-17 + norm + head(argmax)",
        "chunk one = L0-8\nchunk two = L9-17 + norm + head(argmax)",
    ),
    "chunk.order": Lesson(
        "Parts stand in the order in which data flows: embed, ple, layers, norm, head.",
        "chunk body = L9-17 + L0-8 + norm + head(argmax)",
        "chunk body = L0-8 + L9-17 + norm + head(argmax)",
    ),
    "chunk.no-head": Lesson(
        "The last chunk ends without `norm` or without a head, so that nothing comes out.",
        "chunk body = L0-17",
        "chunk body = L0-17 + norm + head(argmax)",
    ),
    "tap.unknown": Lesson(
        "A tap names a layer that the model does not have.",
        "tap L90",
        "tap L9",
    ),
    "part.unknown": Lesson(
        "A chunk has a part that is none of embed, ple, layers, norm and head.",
        "chunk body = embedding + L0-17 + norm + head(argmax)",
        "chunk body = embed + L0-17 + norm + head(argmax)",
    ),
    "part.argument": Lesson(
        "A part has an argument that it does not take, or a head does not say what it gives.",
        "chunk body = L0-17 + norm + head",
        "chunk body = L0-17 + norm + head(argmax)",
    ),
    "part.not-in-model": Lesson(
        "The checkpoint has nothing that this part could run.",
        "chunk body = ple + L0-17 + norm + head(argmax)",
        "chunk body = L0-17 + norm + head(argmax)",
    ),
    "function.unknown": Lesson(
        "The function is none of decode, prefill and verify, or no chunk offers it.",
        "functions decode, prefil(tokens = 64)",
        "functions decode, prefill(tokens = 64)",
    ),
    "function.argument": Lesson(
        "A function lacks `tokens`, or has an option that it does not take.",
        "functions decode, prefill",
        "functions decode, prefill(tokens = 64)",
    ),
    "scheme.unknown": Lesson(
        "The compression scheme is none that topoc knows.",
        "quantize { weights: palletize(bits = 4) }",
        "quantize { weights: palettize(bits = 4) }",
    ),
    "scheme.argument": Lesson(
        "A scheme lacks an argument, or has one that it can't work with.",
        "quantize { weights: palettize(4) }",
        "quantize { weights: palettize(bits = 4) }",
    ),
    "expect.unknown": Lesson(
        "A budget is set on something that is not measured.",
        "expect { layer per chunk <= 8 }",
        "expect { layers per chunk <= 18 }",
    ),
    "allow.unknown-code": Lesson(
        "An `allow` line names a code that no rule has.",
        'allow state.updates because "the slices ran on our devices"',
        "",
    ),
    "allow.not-allowable": Lesson(
        "An `allow` line names what no bundle can do, and a reason does not change that.",
        'allow chunk.gap because "layer 8 is not needed"',
        "",
    ),
    "allow.unknown-chunk": Lesson(
        "An `allow` line is bound to a chunk that the topology does not have.",
        'allow chunk.too-many-layers in chunk9 because "it ran"',
        'allow chunk.too-many-layers in body because "it ran"',
    ),
    "allow.unused": Lesson(
        "An `allow` line accepts a finding that is not there.",
        'allow state.update because "the slices ran on our devices"',
        "",
    ),
    "status.unknown": Lesson(
        "The status, or a line of its record, is none that the ledger knows.",
        "status wip",
        "status prototype",
    ),
    "ledger.incomplete-verdict": Lesson(
        "A verdict lacks its reason, figure, toolchain or what would reopen it.",
        'status rejected on 2026-04 { because "slow" }',
        'status rejected on 2026-04 {\n  because "slow"\n  figure  "9 tok/s against 14"\n'
        '  under   "iOS 26, coremltools 9.0"\n  revisit "a compiler that fuses the tail"\n}',
    ),
    "ledger.no-number": Lesson(
        "The figure of a verdict holds no number, which is all that can be compared later.",
        'status rejected on 2026-04 {\n  because "slow"\n  figure  "much slower"\n'
        '  under   "iOS 26, coremltools 9.0"\n  revisit "a compiler that fuses the tail"\n}',
        'status rejected on 2026-04 {\n  because "slow"\n  figure  "9 tok/s against 14"\n'
        '  under   "iOS 26, coremltools 9.0"\n  revisit "a compiler that fuses the tail"\n}',
    ),
}
