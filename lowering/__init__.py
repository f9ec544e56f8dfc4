"""The compiler: a topology and a checkpoint's architecture in; plan, bundle and proof out."""
