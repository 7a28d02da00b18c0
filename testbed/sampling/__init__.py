"""Training on sampled neighbourhoods of a graph whose parts are on different ranks."""
