"""How the documents are made: their links, their generated tables, their site."""
