from streamd.commands.cli import main

main()
