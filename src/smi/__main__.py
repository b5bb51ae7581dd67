from smi.cli import main

main()
