# The first process of a container without a guest: it makes the folders, reaps
# orphans, and ends when no control shell has been there for a while.
#
# Arguments: the session's folder, the workspace, the seconds between two looks,
# how often nobody may be found (0 for ever), how many looks do not count.
connected() {
	for file in /proc/[0-9]*/cmdline; do
		IFS= read -r line <"$file" && case $line in
		*'# agentenv control shell') return 0 ;;
		esac
	done
	return 1
} 2>/dev/null

umask 022
mkdir -p "$1/app" "$1/home" "$1/mcp" "$2" || exit 125
: >"$1/app/ready" || exit 125
alone=0 looks=0
while [ "$4" = 0 ] || [ $alone -lt "$4" ]; do
	sleep "$3"
	looks=$((looks + 1))
	alone=$((alone + 1))
	if [ $looks -le "$5" ] || connected; then alone=0; fi
done
