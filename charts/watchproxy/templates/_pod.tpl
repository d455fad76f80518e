{{/* The proxy's container, in its own pod or in an application's. */}}
{{- define "watchproxy.container" -}}
name: watchproxy
image: {{ include "watchproxy.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- with .Values.command }}
command: {{ toYaml . | nindent 2 }}
{{- end }}
args:
- serve
- --config=/etc/watchproxy/config/config.yaml
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- with .Values.extraEnv }}
env: {{ toYaml . | nindent 0 }}
{{- end }}
ports:
{{- with include "watchproxy.port" .Values.config.listen }}
{{- if not (include "watchproxy.private" $.Values.config.listen) }}
- name: clients
  containerPort: {{ . }}
{{- end }}
{{- end }}
- name: admin
  containerPort: {{ include "watchproxy.port" .Values.config.adminListen }}
{{- if not (include "watchproxy.private" .Values.config.adminListen) }}
startupProbe:
  httpGet: {path: /readyz, port: admin}
  {{- with .Values.probes.startup }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
livenessProbe:
  httpGet: {path: /livez, port: admin}
  {{- with .Values.probes.liveness }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
readinessProbe:
  httpGet: {path: /readyz, port: admin}
  {{- with .Values.probes.readiness }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- with .Values.termination.preStopSeconds }}
lifecycle:
  preStop:
    sleep:
      seconds: {{ . }}
{{- end }}
resources: {{ toYaml .Values.resources | nindent 2 }}
{{- $security := deepCopy .Values.securityContext }}
{{- if eq .Values.kind "Sidecar" }}
{{- /* These settings are on a sidecar's container, because the pod is the application's. */}}
{{- $security = pick .Values.podSecurityContext "runAsNonRoot" "seccompProfile" | merge $security }}
{{- end }}
securityContext: {{ toYaml $security | nindent 2 }}
volumeMounts:
- name: watchproxy-config
  mountPath: /etc/watchproxy/config
  readOnly: true
{{- if ne .Values.tls.mode "none" }}
- name: watchproxy-tls
  mountPath: /etc/watchproxy/tls
  readOnly: true
{{- end }}
{{- if ne .Values.persistence.type "none" }}
- name: watchproxy-caches
  mountPath: /var/lib/watchproxy
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "watchproxy.volumes" -}}
- name: watchproxy-config
  configMap:
    name: {{ include "watchproxy.fullname" . }}
    items:
    - {key: config.yaml, path: config.yaml}
{{- if ne .Values.tls.mode "none" }}
- name: watchproxy-tls
  secret:
    secretName: {{ include "watchproxy.tlsSecret" . }}
{{- end }}
{{- if eq .Values.persistence.type "pvc" }}
- name: watchproxy-caches
  persistentVolumeClaim:
    claimName: {{ default (include "watchproxy.fullname" .) .Values.persistence.existingClaim }}
{{- else if eq .Values.persistence.type "emptyDir" }}
- name: watchproxy-caches
  {{- with .Values.persistence.size }}
  emptyDir:
    sizeLimit: {{ . }}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "watchproxy.pod" -}}
metadata:
  labels:
    {{- include "watchproxy.selectorLabels" . | nindent 4 }}
    {{- with merge (deepCopy .Values.podLabels) .Values.commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- $annotations := deepCopy .Values.podAnnotations }}
  {{- if .Values.rollOnConfigChange }}
  {{- $_ := set $annotations "checksum/config" (include "watchproxy.checksum" .) }}
  {{- end }}
  {{- with $annotations }}
  annotations: {{ toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "watchproxy.serviceAccountName" . }}
  automountServiceAccountToken: true
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "watchproxy.terminationSeconds" . }}
  securityContext: {{ toYaml .Values.podSecurityContext | nindent 4 }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{ toYaml . | nindent 2 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{ toYaml . | nindent 2 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- if and .Values.topologySpread.enabled (eq .Values.kind "Deployment") }}
  topologySpreadConstraints:
  {{- range .Values.topologySpread.topologyKeys }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: {{ $.Values.topologySpread.whenUnsatisfiable }}
    labelSelector:
      matchLabels: {{ include "watchproxy.selectorLabels" $ | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
  {{- end }}
  containers:
  - {{ include "watchproxy.container" . | nindent 4 | trim }}
  volumes: {{ include "watchproxy.volumes" . | nindent 2 }}
{{- end -}}
