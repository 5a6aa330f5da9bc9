// Prints the progress of a job: go run follow.go URL
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
)

type progress struct{ Done, Of int }

func main() {
	offset := "-1"
	for closed := false; !closed; {
		// Each request waits until there is more, and says where the next one begins.
		answer, err := http.Get(os.Args[1] + "&live=long-poll&offset=" + offset)
		if err != nil {
			log.Fatal(err)
		}
		var messages []progress
		switch answer.StatusCode {
		case http.StatusOK:
			if err := json.NewDecoder(answer.Body).Decode(&messages); err != nil {
				log.Fatal(err)
			}
		case http.StatusNoContent: // nothing came in time
		default:
			log.Fatal(answer.Status)
		}
		answer.Body.Close()
		for _, message := range messages {
			fmt.Printf("%d of %d\n", message.Done, message.Of)
		}
		offset = answer.Header.Get("Stream-Next-Offset")
		closed = answer.Header.Get("Stream-Closed") == "true"
	}
}
