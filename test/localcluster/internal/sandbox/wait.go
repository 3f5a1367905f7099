// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

const (
	probeInterval = 25 * time.Millisecond
	probeTimeout  = 2 * time.Second
)

// waitFor blocks until a target answers; see Service.WaitFor.
func waitFor(target string) {
	client := &http.Client{
		Timeout: probeTimeout,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			// Only readiness is asked for, of a program that this
			// cluster started itself.
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
		},
	}
	for !probe(client, target) {
		time.Sleep(probeInterval)
	}
}

func probe(client *http.Client, target string) bool {
	if path, ok := strings.CutPrefix(target, "unix:"); ok {
		conn, err := net.DialTimeout("unix", path, probeTimeout)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	}
	response, err := client.Get(target)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return err == nil && response.StatusCode == http.StatusOK
}
