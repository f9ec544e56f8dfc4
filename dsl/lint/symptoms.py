"""Messages of compilers and runtimes that no rule stands behind alone, and what they mean."""

from attrs import frozen

from topoc.dsl.lint.rule import Evidence, Trust
from topoc.dsl.plain import Plain


@frozen(kw_only=True, eq=False, repr=False)
class Symptom(Plain):
    """Some messages, verbatim but for their variable parts, and what to think of them."""

    texts: tuple[str, ...]
    means: str
    remedy: str
    evidence: Evidence
    rules: tuple[str, ...] = ()  # that may be behind it


SYMPTOMS = (
    Symptom(
        texts=("Must re-compile the E5 bundle", "ANE model load has failed for on-device compiled"),
        means="On the first load after an installation or a system update this only says that the"
        " package is compiled for the device now. If it comes back, the package is too much for the"
        " compiler.",
        remedy="Wait for the first load, which takes minutes; if it fails, cut the chunk in two.",
        evidence=Evidence(
            "the first load compiles: 4 minutes for 1.4 GB, 15 for four chunks of 2B",
            "CoreML-LLM docs/QWEN35_LESSONS.md:207-212",
            "2026-04-28",
            Trust.MEASURED,
            device="iPhone 17 Pro",
        ),
        rules=("chunk.too-many-layers", "chunk.too-heavy"),
    ),
    Symptom(
        texts=(
            "E5RT encountered an STL exception. msg = MILCompilerForANE error",
            "MILCompilerForANE error: failed to compile ANE model using ANEF",
            "Error=_ANECompiler : ANECCompile() FAILED",
            "E5RT MILCompilerForANE Error=(11)",
        ),
        means="The compiler of the Neural Engine gave up on the program, and does not say where. It"
        " does so for programs that are too large, for operations it lacks, and for a hint that"
        " shapes seldom change.",
        remedy="Lint the package, mend what is found, then halve the chunk until it compiles.",
        evidence=Evidence(
            "the hint `reshapeFrequency = .infrequent` makes a package fail that compiles without",
            "CoreML-LLM Sources/CoreMLLLM/ChunkedEngine.swift:300-305",
            "2026-04-21",
            Trust.MEASURED,
            device="iPhone 17 Pro, iOS 26",
        ),
        rules=(
            "chunk.too-many-ops",
            "quant.activations",
            "state.batch-in-shared-package",
            "op.matmul-scatter",
        ),
    ),
    Symptom(
        texts=("BlobWriter not loaded",),
        means="The installed coremltools lacks its native parts, as its wheels do for some"
        " systems. topoc writes weights by itself and does not need them; other converters do.",
        remedy="Build coremltools from source there, or take a wheel that has its libraries.",
        evidence=Evidence(
            "wheels of 8.3 and 9.0 have no libraries for macOS 26",
            "CoreML-LLM docs/MACOS_26_BUILD_ENV.md:3-21",
            "2026-05",
            Trust.MEASURED,
            toolchain="coremltools 9.0, macOS 26",
        ),
    ),
    Symptom(
        texts=("must be an MLState, but it was not", "The input feature for"),
        means="The program keeps a state, and the host called it as if it were an input.",
        remedy="Make the state with `make_state()` and hand it to each prediction.",
        evidence=Evidence(
            "a stateful package is called with arrays in place of a state",
            "apple/coremltools#2519",
            "2025-05-21",
            Trust.REPORTED,
        ),
        rules=("state.update",),
    ),
    Symptom(
        texts=("State only support fp16 dtype. Got input var with dtype fp32.",),
        means="A state holds fp16 and nothing else.",
        remedy="Keep the cache `store io`, or in fp16.",
        evidence=Evidence(
            "coremltools refuses a state of fp32 while it converts",
            "kasper0406/stablehlo-coreml#76",
            "2025",
            Trust.REPORTED,
            toolchain="coremltools 9.0",
        ),
        rules=("state.update",),
    ),
    Symptom(
        texts=("query, key, value must have a same batch dimension",),
        means="The fused attention takes as many KV heads as query heads.",
        remedy="Repeat the KV heads before it, or write the attention out, as topoc does.",
        evidence=Evidence(
            "grouped heads are refused by the fused operation",
            "apple/coremltools#2855",
            "2026",
            Trust.REPORTED,
            toolchain="coremltools 9.0",
        ),
    ),
    Symptom(
        texts=("live input tensor not used in network",),
        means="A network with two or more fused attentions was refused by the Neural Engine.",
        remedy="Write the attention out: matmul, softmax, matmul.",
        evidence=Evidence(
            "with two fused attentions the whole model goes to the CPU",
            "kasper0406/stablehlo-coreml#89",
            "2025",
            Trust.REPORTED,
        ),
    ),
    Symptom(
        texts=("MultiArray shape does not match the shape specified in the model description",),
        means="Host and package disagree on a size, mostly because they come from different builds"
        " or were built for different contexts.",
        remedy="Lint the bundle: `topoc lint DIR` compares every shape with the manifest.",
        evidence=Evidence(
            "a mask of 1,024 beside packages for 512",
            "Anemll/Anemll#54",
            "2025",
            Trust.REPORTED,
        ),
        rules=("kv.layouts-disagree",),
    ),
    Symptom(
        texts=("Pool not running",),
        means="The palettizer's worker processes died between two chunks of one process.",
        remedy="Palettize with one worker; topoc does it without a pool.",
        evidence=Evidence(
            "k-means with several workers fails on chunked models",
            "Anemll/Anemll at e4504d2",
            "2025",
            Trust.REPORTED,
        ),
    ),
)
