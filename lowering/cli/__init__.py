"""The commands that need the compiler, one a file; `topoc.dsl.cli` lists them."""
