"""Lessons on models, layers and the rules that select them."""

from topoc.dsl.lint.lessons.lesson import Lesson

LESSONS: dict[str, Lesson] = {
    "model.missing": Lesson(
        "No `model` line here or in a base names the checkpoint's config.json.",
        "topology modelless {\n  context 2048\n  chunk body = L0-17 + norm + head(argmax)\n}",
        'topology modelled {\n  model "gemma3.json"\n  context 2048\n'
        "  chunk body = L0-17 + norm + head(argmax)\n}",
    ),
    "model.unreadable": Lesson(
        "The config.json is not there, can't be opened, or is no JSON object.",
        'model "models/nowhere.json"',
        'model "gemma3.json"',
    ),
    "model.contradicts-checkpoint": Lesson(
        "The weights are of another model than the config.json that the topology names.",
        "topoc compile gemma3_270m.topo --weights gemma-3-1b/",
        "topoc compile gemma3_270m.topo --weights gemma-3-270m/",
    ),
    "context.missing": Lesson(
        "A topology that nothing else bounds says how many positions full attention keeps.",
        'topology unbounded {\n  model "gemma3.json"\n'
        "  chunk body = L0-17 + norm + head(argmax)\n}",
        'topology bounded {\n  model "gemma3.json"\n  context 2048\n'
        "  chunk body = L0-17 + norm + head(argmax)\n}",
    ),
    "target.unknown": Lesson(
        "A word of the target line is no unit, no system and no chip that topoc has data on.",
        "target ane ios18 a99",
        "target ane ios18 a19",
    ),
    "features.unknown": Lesson(
        "The profile of input and output names is none that topoc emits.",
        "features coreml",
        "features coreml_llm",
    ),
    "features.cannot-express": Lesson(
        "The profile has no names or shapes for what the topology asks of it.",
        "features coreml_llm\nkv { all: row tight }",
        "features coreml_llm\nkv { all: row padded }",
    ),
    "layer.out-of-range": Lesson(
        "A layer number is beyond the model's last layer; the first is L0.",
        "kv { L0-18: write shift }",
        "kv { L0-17: write shift }",
    ),
    "layer.backwards": Lesson(
        "A range of layers ends before it begins.",
        "kv { L7-0: write shift }",
        "kv { L0-7: write shift }",
    ),
    "selector.unknown": Lesson(
        "A selector is neither a layer, nor `all`, nor a kind, nor (in quantize) a role.",
        "kv { slidng: write shift }",
        "kv { sliding: write shift }",
    ),
    "selector.mixed-list": Lesson(
        "A comma joins things of one class; layers and roles are put side by side.",
        "quantize { L0, mlp: none }",
        "quantize { L0 mlp: none }",
    ),
    "selector.empty": Lesson(
        "A rule of this topology's own selects no layer at all.",
        "kv { L0-4 full: write blend }",
        "kv { L0-5 full: write blend }",
    ),
    "rule.dead": Lesson(
        "Later rules set again whatever this one sets, for every layer that it selects.",
        "kv {\n  L0-7: write shift\n  all:  write blend\n}",
        "kv {\n  all:  write blend\n  L0-7: write shift\n}",
    ),
    "attention.unknown": Lesson(
        "The attention kind is none that topoc knows.",
        "attention { full: windowed(window = 512) }",
        "attention { full: windowed_full(window = 512) }",
    ),
    "attention.argument": Lesson(
        "An attention kind lacks an argument that it needs, or gets one that it does not take.",
        "attention { full: windowed_full(2048) }",
        "attention { full: windowed_full(window = 2048) }",
    ),
    "attention.misfit": Lesson(
        "The kind is for layers of the other sort in the checkpoint.",
        "attention { full: sliding }",
        "attention { full: windowed_full(window = 512) }",
    ),
    "attention.window-over-context": Lesson(
        "A window holds more positions than the context.",
        "attention { full: windowed_full(window = 4096) }",
        "attention { full: windowed_full(window = 2048) }",
    ),
    "kv.unknown": Lesson(
        "The KV clause is none that topoc knows.",
        "kv { all: keep state }",
        "kv { all: store state }",
    ),
    "kv.clause": Lesson(
        "A KV clause has another word or argument than it takes.",
        "kv { all: write both }",
        "kv { all: write blend }",
    ),
}
