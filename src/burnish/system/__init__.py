"""What operating systems do in different ways, or not at all: a module for each, with a stand-in where one lacks it."""
