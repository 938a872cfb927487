"""Methods whose pages show no result over three seeds yet."""
