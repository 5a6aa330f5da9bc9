"""The console: a page of JavaScript modules, which are files in ``static`` and need no build.

- ``main.js`` draws the frame and finds the page for the part of the address after its ``#``. Each
  page is a module of its own.
- ``api.js`` sends all requests, to the same HTTP API that every client uses. The console has no
  rights of its own: it sends the token that its user entered, and the server judges that.
- Everything is drawn through Preact and htm, whose templates turn values into text nodes and
  attributes, never into markup. The policy that goes with the page forbids scripts and styles that
  are not these files, and making markup of text (``require-trusted-types-for``).

The files say nothing of the node and are open to anyone; ``admin/console.py`` serves them.
Read on in docs/console.md.
"""
