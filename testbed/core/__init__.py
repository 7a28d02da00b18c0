"""What every room builds on: errors, resources, what users write and name, registries, tables of
options.
"""
