"""What every other package builds on: errors, resources, parsing of user input, registries, and
tables of options.
"""
