"""Every layout that topoc ships, as `.topo` files, with the models' configs beside them."""
